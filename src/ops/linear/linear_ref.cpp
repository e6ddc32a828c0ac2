// The specification of linear.h as plain loops.
#include <cstring>

#include "base/number.h"
#include "ops/linear/linear.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {
namespace {

// Rows of a file need not be aligned to their elements.
template <class T>
T read(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float element(const WeightView& weight, int64_t o, int64_t k) {
  const std::byte* row = weight.data + o * weight.row_bytes;
  switch (weight.format) {
    case WeightFormat::kF32:
      return read<float>(row, k);
    case WeightFormat::kF16:
      return f16_to_f32(read<uint16_t>(row, k));
    case WeightFormat::kBf16:
      return bf16_to_f32(read<uint16_t>(row, k));
    default:
      break;
  }
  const uint8_t pair = read<uint8_t>(row, k / 2);
  const uint8_t scale = read<uint8_t>(weight.scales + o * weight.scale_row_bytes, k / 32);
  return kE2m1[k % 2 == 0 ? pair & 15 : pair >> 4] * e8m0_to_f32(scale);
}

}  // namespace

void linear(const WeightView& weight, int64_t out_begin, int64_t out_end, const float* x, int64_t x_stride,
            int64_t rows, float* y, int64_t y_stride, std::byte*) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = out_begin; o < out_end; ++o) {
      y[r * y_stride + o] = dot_lanes(
          weight.in, [&](int64_t k) { return element(weight, o, k); }, [&](int64_t k) { return x[r * x_stride + k]; });
    }
  }
}

}  // namespace weir::reference
