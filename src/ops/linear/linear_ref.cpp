// The specification of linear.h as plain loops.
#include <algorithm>

#include "formats/quant.h"
#include "ops/linear/linear.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {

namespace {

// Elements of one row of a matrix, dequantised by chunks of whole blocks.
class Row {
 public:
  Row(const WeightView& weight, int64_t o) : weight_(weight), o_(o) {}
  float operator()(int64_t k) {
    if (k < first_ || k >= first_ + kChunk) {
      first_ = k / kChunk * kChunk;
      dequantize(weight_, o_, first_, std::min(kChunk, weight_.in - first_), values_);
    }
    return values_[k - first_];
  }

 private:
  static constexpr int64_t kChunk = 256;
  const WeightView& weight_;
  int64_t o_;
  int64_t first_ = -kChunk;
  float values_[kChunk];
};

}  // namespace

void linear(const WeightView& weight, int64_t out_begin, int64_t out_end, const float* x, int64_t x_stride,
            int64_t rows, float* y, int64_t y_stride, std::byte*) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = out_begin; o < out_end; ++o) {
      Row row(weight, o);
      y[r * y_stride + o] = dot_lanes(
          weight.in, [&](int64_t k) { return row(k); }, [&](int64_t k) { return x[r * x_stride + k]; });
    }
  }
}

}  // namespace weir::reference
