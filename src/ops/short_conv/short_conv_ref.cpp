#include "base/math.h"
#include "ops/short_conv/short_conv_kernel.h"

namespace weir::reference {

void short_conv_row(const float* weight, int64_t weight_stride, const float* const* x, int64_t taps, int64_t channels,
                    float* y, float* journal) {
  for (int64_t c = 0; c < channels; ++c) {
    float sum = 0.f;
    for (int64_t tap = 0; tap < taps; ++tap) sum = math::fma(weight[tap * weight_stride + c], x[tap][c], sum);
    y[c] = math::silu(sum);
    if (journal != nullptr) journal[c] = x[taps - 1][c];
  }
}

}  // namespace weir::reference
