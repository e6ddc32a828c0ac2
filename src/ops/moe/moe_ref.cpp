#include "base/math.h"
#include "ops/moe/moe_kernel.h"

namespace weir::reference {

void weighted_sum(const float* z, int64_t z_stride, const int32_t* places, const float* weights, int64_t top_k,
                  float* y, int64_t n) {
  for (int64_t d = 0; d < n; ++d) {
    float a = 0;
    for (int64_t k = 0; k < top_k; ++k) a = math::fma(weights[k], z[places[k] * z_stride + d], a);
    y[d] = a;
  }
}

}  // namespace weir::reference
