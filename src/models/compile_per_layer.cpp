// Per-layer embeddings.
#include "models/compiler.h"
#include "ops/embedding/embedding.h"

namespace weir {
namespace {

constexpr float kHalfRoot = 0.70710678f;  // 1 / sqrt(2)

}  // namespace

void Compiler::per_layer_vectors(Buffer x0) {
  const PerLayerTable& p = *spec_.per_layer;
  const auto layers = static_cast<int64_t>(spec_.layers.size());
  const Buffer looked_up = c_.buffer("per_layer.table", layers * p.size);
  per_layer_ = c_.buffer("per_layer.vectors", layers * p.size);
  c_.add(bind_embedding(c_.device(), "per_layer.embedding",
                        {.table = p.table, .scale = p.scale, .y = looked_up.data, .y_stride = looked_up.cols}),
         looked_up);
  linear("per_layer.projection", p.projection, x0, per_layer_);
  rms("per_layer.norm", p.norm, p.size, p.eps, per_layer_, per_layer_, RowSet::kAll, layers);
  add_scaled("per_layer.add", per_layer_, looked_up, kHalfRoot, per_layer_);
}

void Compiler::per_layer_input(const std::string& layer, const LayerSpec& spec, Buffer stream, Buffer out) {
  const PerLayerInput& p = *spec.per_layer;
  const int64_t size = spec_.per_layer->size;
  const int64_t index = &spec - spec_.layers.data();
  const std::string name = layer + "per_layer.";
  const Buffer gate = c_.buffer("per_layer.gate", size);
  const Buffer gated = product_buffer("per_layer.gated", gate);
  linear(name + "gate", p.gate, stream, gate);
  c_.add(bind_elementwise(c_.device(), name + "act",
                          {.kind = spec_.act.kind,
                           .beta = spec_.act.beta,
                           .linear_beta = spec_.act.linear_beta,
                           .size = size,
                           .g = gate.data,
                           .g_stride = gate.cols,
                           .u = per_layer_.data + index * size,
                           .u_stride = per_layer_.cols,
                           .y = gated.data,
                           .y_stride = gated.cols,
                           .y_type = gated.type}),
         gated);
  linear(name + "projection", p.projection, gated, out);
  norm(name + "norm", p.norm, out, out);
  add_scaled(name + "add", stream, out, spec.scalar, stream);
}

}  // namespace weir
