// The last phase of moe.h for one row: y[d] = sum over slots, ascending, a = fma(weights[k], z of slot k [d], a) from
// +0.
#pragma once

#include <cstdint>

namespace weir {

// z of slot k is z + places[k] * z_stride. n elements of it, and of y.
#define WEIR_MOE_KERNELS                                                                                          \
  void weighted_sum(const float* z, int64_t z_stride, const int32_t* places, const float* weights, int64_t top_k, \
                    float* y, int64_t n);
namespace reference {
WEIR_MOE_KERNELS
}
namespace avx2 {
WEIR_MOE_KERNELS
}
namespace avx512 {
WEIR_MOE_KERNELS
}
#undef WEIR_MOE_KERNELS

}  // namespace weir
