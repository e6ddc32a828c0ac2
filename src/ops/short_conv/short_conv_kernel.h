// The arithmetic of one row, in every kernel set. Internal to the folder.
#pragma once

#include <cstdint>

namespace weir {

// Channels [0, channels) of one row: y[c] = silu(sum over taps of weight[tap * weight_stride + c] * x[tap][c]), oldest
// input first, the row itself last. `journal` receives a copy of the row's own input unless null.
using ShortConvRow = void (*)(const float* weight, int64_t weight_stride, const float* const* x, int64_t taps,
                              int64_t channels, float* y, float* journal);

namespace reference {
void short_conv_row(const float* weight, int64_t weight_stride, const float* const* x, int64_t taps, int64_t channels,
                    float* y, float* journal);
}
namespace avx2 {
void short_conv_row(const float* weight, int64_t weight_stride, const float* const* x, int64_t taps, int64_t channels,
                    float* y, float* journal);
}
namespace avx512 {
void short_conv_row(const float* weight, int64_t weight_stride, const float* const* x, int64_t taps, int64_t channels,
                    float* y, float* journal);
}

}  // namespace weir
