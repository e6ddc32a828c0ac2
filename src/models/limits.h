// What is believed of a configuration: beyond these numbers it is taken for damaged. Far above every published model,
// and small enough that products of two of them, and a few more bits, fit in 64 bits.
#pragma once

#include <cstdint>

namespace weir {

inline constexpr int64_t kMaxWidth = int64_t{1} << 24;  // of a vector or a vocabulary
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 65536;
inline constexpr int64_t kMaxHeadDim = 65536;
inline constexpr int64_t kMaxExperts = 65536;
inline constexpr int64_t kMaxContext = int64_t{1} << 32;  // tokens

}  // namespace weir
