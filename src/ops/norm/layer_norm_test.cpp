#include "ops/norm/layer_norm.h"

#include <cmath>

#include "base/error.h"
#include "ops/simd/kernel_test.h"

namespace weir {
namespace {

std::vector<float> normed(KernelSet set, int64_t rows, int64_t size, const std::vector<float>& x,
                          const std::vector<float>& weight, const std::vector<float>& bias) {
  std::vector<float> y(static_cast<size_t>(rows * size));
  const LayerNormArgs args{.size = size,
                           .eps = 1e-6f,
                           .weight = weight.data(),
                           .bias = bias.data(),
                           .x = x.data(),
                           .x_stride = size,
                           .y = y.data(),
                           .y_stride = size};
  for (int64_t row = 0; row < rows; ++row) layer_norm_kernel(set)(args, row);
  return y;
}

class LayerNormKernels : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(, LayerNormKernels, kVectorSets, kernel_set_test_name);

TEST_P(LayerNormKernels, EqualTheReference) {
  RandomFloats random(1);
  for (const int64_t size : {1, 2, 15, 16, 17, 31, 64, 100, 128, 257}) {
    for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
      const std::vector<float> x = random.take(3 * size, values), weight = random.take(size), bias = random.take(size);
      EXPECT_TRUE(same_floats(normed(KernelSet::kReference, 3, size, x, weight, bias),
                              normed(GetParam(), 3, size, x, weight, bias)))
          << size;
    }
  }
}

// The formula in double.
TEST(LayerNorm, CentresAndScalesEachRow) {
  RandomFloats random(2);
  const int64_t size = 100;
  const std::vector<float> x = random.take(size), weight = random.take(size), bias = random.take(size);
  const std::vector<float> y = normed(KernelSet::kReference, 1, size, x, weight, bias);
  double mean = 0, variance = 0;
  for (const float v : x) mean += static_cast<double>(v) / size;
  for (const float v : x) variance += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean) / size;
  for (size_t k = 0; k < y.size(); ++k) {
    const double expected =
        (static_cast<double>(x[k]) - mean) / std::sqrt(variance + 1e-6) * static_cast<double>(weight[k]) +
        static_cast<double>(bias[k]);
    EXPECT_NEAR(y[k], expected, 2e-6) << k;
  }
}

TEST(LayerNorm, RefusesMissingBuffers) {
  CpuDevice device(1, KernelSet::kReference);
  float one = 1;
  const LayerNormArgs good{.size = 1, .weight = &one, .bias = &one, .x = &one, .x_stride = 1, .y = &one, .y_stride = 1};
  EXPECT_NO_THROW(bind_layer_norm(device, "norm", good));
  LayerNormArgs bad = good;
  bad.bias = nullptr;
  EXPECT_THROW(bind_layer_norm(device, "norm", bad), Error);
  bad = good;
  bad.size = 2;
  EXPECT_THROW(bind_layer_norm(device, "norm", bad), Error);
}

}  // namespace
}  // namespace weir
