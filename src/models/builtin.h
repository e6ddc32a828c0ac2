// The model inside the program (models/tiny-k3, see tools/tiny_k3/README.md): a small Kimi K3 that the project trained,
// in K3's published layout. It is read by the same code as one on disk.
#pragma once

namespace weir {

// Where a model is wanted by path.
inline constexpr const char* kBuiltinModel = "builtin:tiny-k3";

// Makes its files available under that path. Call it before any model is opened; again does nothing.
void add_builtin_model();

}  // namespace weir
