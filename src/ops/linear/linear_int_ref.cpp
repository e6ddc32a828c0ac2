// The integer products of linear.h as plain loops.
#include "base/math.h"
#include "formats/quant.h"
#include "ops/linear/linear.h"

namespace weir::reference {
namespace {

float dot(const WeightView& weight, int64_t o, const std::byte* row, const CodedRowLayout& layout) {
  const int8_t* q = reinterpret_cast<const int8_t*>(row);
  const float* scales = reinterpret_cast<const float*>(row + layout.scales);
  const WeightBlock block = weight_block(weight.format);
  const bool minima = has_minima(weight.format);
  BlockCodes w;
  float lanes[8] = {};
  for (int64_t b = 0; b < layout.blocks; ++b, q += block.elements) {
    decode_block(weight.format, weight.data + o * weight.row_bytes + b * block.bytes, w);
    int32_t sum = 0, minimum = 0;
    for (int64_t i = 0; i < block.elements; ++i) {
      sum += w.scale[i / 16] * w.code[i] * q[i];
      minimum += w.min[i / 16] * q[i];
    }
    float& lane = lanes[b % 8];
    lane = math::fma(static_cast<float>(sum), w.d * scales[b], lane);
    if (minima) lane = math::fma(static_cast<float>(minimum), -(w.dmin * scales[b]), lane);
  }
  for (int half = 4; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

}  // namespace

void linear_int(const WeightView& weight, int64_t out_begin, int64_t out_end, const CodedRows& x, int64_t rows,
                float* y, int64_t y_stride, std::byte*) {
  const CodedRowLayout layout = coded_row_layout(row_coding(weight.format, Activations::kAuto), weight.in);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = out_begin; o < out_end; ++o) {
      y[r * y_stride + o] = dot(weight, o, x.data + r * x.row_bytes, layout);
    }
  }
}

}  // namespace weir::reference
