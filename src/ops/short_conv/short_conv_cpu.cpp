#include "base/lanes.h"
#include "ops/short_conv/short_conv_kernel.h"

namespace weir::WEIR_ISA {
namespace {

// kTaps 0: any number.
template <int kTaps>
void conv_row(const float* weight, int64_t weight_stride, const float* const* x, int64_t any_taps, int64_t channels,
              float* y, float* journal) {
  const int64_t taps = kTaps == 0 ? any_taps : kTaps;
  for (int64_t c = 0; c < channels; c += 16) {
    const int64_t n = channels - c < 16 ? channels - c : 16;
    V16 sum = zero16();
    V16 own = zero16();
    for (int64_t tap = 0; tap < taps; ++tap) {
      own = load16_first(x[tap] + c, n);
      sum = fma(load16_first(weight + tap * weight_stride + c, n), own, sum);
    }
    store16_first(y + c, math::silu(sum), n);
    if (journal != nullptr) store16_first(journal + c, own, n);
  }
}

}  // namespace

void short_conv_row(const float* weight, int64_t weight_stride, const float* const* x, int64_t taps, int64_t channels,
                    float* y, float* journal) {
  if (taps == 4) {
    conv_row<4>(weight, weight_stride, x, taps, channels, y, journal);
  } else {
    conv_row<0>(weight, weight_stride, x, taps, channels, y, journal);
  }
}

}  // namespace weir::WEIR_ISA
