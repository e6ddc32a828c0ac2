#include "base/lanes.h"
#include "ops/moe/moe_kernel.h"

namespace weir::WEIR_ISA {

void weighted_sum(const float* z, int64_t z_stride, const int32_t* places, const float* weights, int64_t top_k,
                  float* y, int64_t n) {
  // Four vectors side by side: each slot's row is read in pieces of four cache lines.
  int64_t d = 0;
  for (; d + 64 <= n; d += 64) {
    V16 sum[4];
    for (int j = 0; j < 4; ++j) sum[j] = zero16();
    for (int64_t k = 0; k < top_k; ++k) {
      const float* row = z + places[k] * z_stride + d;
      const V16 weight = set16(weights[k]);
      for (int j = 0; j < 4; ++j) sum[j] = fma(weight, load16(row + j * 16), sum[j]);
    }
    for (int j = 0; j < 4; ++j) store16(y + d + j * 16, sum[j]);
  }
  for (; d < n; d += 16) {
    const int64_t count = n - d < 16 ? n - d : 16;
    V16 sum = zero16();
    for (int64_t k = 0; k < top_k; ++k) {
      sum = fma(set16(weights[k]), load16_first(z + places[k] * z_stride + d, count), sum);
    }
    store16_first(y + d, sum, count);
  }
}

}  // namespace weir::WEIR_ISA
