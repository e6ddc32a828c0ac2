// The integer products of linear.h as plain loops.
#include <algorithm>

#include "base/math.h"
#include "formats/quant.h"
#include "ops/linear/linear.h"

namespace weir::reference {
namespace {

constexpr int64_t kRows = 16;  // for which a block is decoded once

struct Lanes8 {
  float sum[8] = {};
  float fold() {
    for (int half = 4; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) sum[i] = sum[i] + sum[i + half];
    }
    return sum[0];
  }
};

// One output of up to kRows rows.
void dots(const WeightView& weight, int64_t o, const CodedRows& x, int64_t first, int64_t rows, float* y,
          int64_t y_stride) {
  const CodedRowLayout layout = coded_row_layout(row_coding(weight.format, Activations::kAuto), weight.in);
  const WeightBlock block = weight_block(weight.format);
  const bool minima = has_minima(weight.format);
  BlockCodes w;
  Lanes8 lanes[kRows];
  for (int64_t b = 0; b < layout.blocks; ++b) {
    decode_block(weight.format, weight.data + o * weight.row_bytes + b * block.bytes, w);
    for (int64_t r = 0; r < rows; ++r) {
      const std::byte* row = x.data + (first + r) * x.row_bytes;
      const int8_t* q = reinterpret_cast<const int8_t*>(row) + b * block.elements;
      const float d = reinterpret_cast<const float*>(row + layout.scales)[b];
      int32_t sum = 0, minimum = 0;
      for (int64_t i = 0; i < block.elements; ++i) {
        sum += w.scale[i / 16] * w.code[i] * q[i];
        minimum += w.min[i / 16] * q[i];
      }
      float& lane = lanes[r].sum[b % 8];
      lane = math::fma(static_cast<float>(sum), w.d * d, lane);
      if (minima) lane = math::fma(static_cast<float>(minimum), -(w.dmin * d), lane);
    }
  }
  for (int64_t r = 0; r < rows; ++r) y[(first + r) * y_stride + o] = lanes[r].fold();
}

}  // namespace

void linear_int(const WeightView& weight, int64_t out_begin, int64_t out_end, const CodedRows& x, int64_t rows,
                float* y, int64_t y_stride, std::byte*) {
  for (int64_t o = out_begin; o < out_end; ++o) {
    for (int64_t r = 0; r < rows; r += kRows) dots(weight, o, x, r, std::min(kRows, rows - r), y, y_stride);
  }
}

}  // namespace weir::reference
