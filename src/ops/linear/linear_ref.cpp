// The specification of linear.h as plain loops.
#include <algorithm>

#include "formats/quant.h"
#include "ops/linear/linear.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {

namespace {

constexpr int64_t kRows = 16;    // for which a chunk is dequantised once
constexpr int64_t kChunk = 256;  // elements: whole blocks of every format

// One output of up to kRows rows: dot_lanes for each.
void dots(const WeightView& weight, int64_t o, const float* x, int64_t x_stride, int64_t rows, float* y,
          int64_t y_stride) {
  Lanes lanes[kRows];
  float w[kChunk];
  const int64_t padded = (weight.in + 15) / 16 * 16;
  for (int64_t first = 0; first < padded; first += kChunk) {
    const int64_t count = std::min(kChunk, weight.in - first);
    dequantize(weight, o, first, count, w);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < std::min(kChunk, padded - first); ++i) {
        lanes[r].fma(first + i, i < count ? w[i] : 0.f, i < count ? x[r * x_stride + first + i] : 0.f);
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) y[r * y_stride + o] = lanes[r].fold();
}

}  // namespace

void linear(const WeightView& weight, int64_t out_begin, int64_t out_end, const float* x, int64_t x_stride,
            int64_t rows, float* y, int64_t y_stride, std::byte*) {
  for (int64_t o = out_begin; o < out_end; ++o) {
    for (int64_t r = 0; r < rows; r += kRows) {
      dots(weight, o, x + r * x_stride, x_stride, std::min(kRows, rows - r), y + r * y_stride, y_stride);
    }
  }
}

}  // namespace weir::reference
