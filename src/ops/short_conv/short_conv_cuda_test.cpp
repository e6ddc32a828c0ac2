// The short convolution on a GPU gives the CPU's bits: outputs, journals and windows.
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "ops/short_conv/short_conv_testing.h"
#include "tests/support/cuda_case.h"

namespace weir::test {
namespace {

std::string first_difference(const std::vector<float>& found, const std::vector<float>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&found[i], &expected[i], sizeof(float)) == 0) continue;
    if (std::isnan(found[i]) && std::isnan(expected[i])) continue;  // a GPU has one NaN, a CPU many
    return concat("element ", i, ": ", std::bit_cast<uint32_t>(found[i]), " instead of ",
                  std::bit_cast<uint32_t>(expected[i]), ", ", found[i], " and ", expected[i]);
  }
  return "";
}

class ShortConvCuda : public testing::CudaCase {
 protected:
  CpuDevice cpu_{1, KernelSet::kReference};
};

TEST_F(ShortConvCuda, EqualsTheReferenceHoweverASpanIsSplit) {
  std::mt19937 random(5);
  for (int64_t channels : {1, 45, 300}) {
    for (int64_t taps : {2, 3, 4, 5, 6, 7, 8}) {
      const std::vector<float> weight = random_values(channels * taps, 1), x = random_values(channels * 57, 2);
      World expected(cpu_, channels, taps, weight, {x});
      expected.step({57}, true, false);
      for (int64_t longest : {1, 30, 57}) {
        World found(device(), channels, taps, weight, {x}), sparse(device(), channels, taps, weight, {x});
        while (found.left(0) > 0) {
          const int64_t n = longest == 57 ? 57 : std::min<int64_t>(found.left(0), 1 + random() % longest);
          found.step({n}, true, false);
          sparse.step({n}, false, true);
        }
        EXPECT_EQ(first_difference(found.state(0).out, expected.state(0).out), "") << channels << "x" << taps;
        EXPECT_TRUE(same(found.pages(), expected.pages()));
        EXPECT_TRUE(same(found.slots(), expected.slots()));
        EXPECT_EQ(first_difference(sparse.state(0).out, expected.state(0).out), "");
        EXPECT_TRUE(same(sparse.window(0, 48), expected.window(0, 48)));
      }
    }
  }
}

TEST_F(ShortConvCuda, SequencesInOneBatchEqualEachAlone) {
  const int64_t channels = 140;
  const std::vector<float> weight = random_values(channels * 4, 3);
  std::vector<std::vector<float>> inputs;
  for (int64_t rows : {1, 40, 16, 63}) inputs.push_back(random_values(channels * rows, static_cast<uint32_t>(rows)));
  World together(device(), channels, 4, weight, inputs);
  together.step({1, 3, 16, 20}, false, false);
  together.step({0, 1, 0, 1}, false, false);
  together.step({0, 36, 0, 42}, false, false);
  for (size_t s = 0; s < inputs.size(); ++s) {
    World alone(cpu_, channels, 4, weight, {inputs[s]});
    alone.step({alone.left(0)}, false, false);
    EXPECT_EQ(first_difference(together.state(s).out, alone.state(0).out), "");
  }
}

TEST_F(ShortConvCuda, BoundsBeyondTheStepChangeNothing) {
  const int64_t channels = 10;
  const std::vector<float> weight = random_values(channels * 4, 3), x = random_values(channels * 40, 4);
  World loose(device(), channels, 4, weight, {x}), exact(cpu_, channels, 4, weight, {x});
  loose.loosen_bounds(9);
  for (int64_t piece : {1, 12, 1, 20}) {
    loose.step({piece}, true, false);
    exact.step({piece}, true, false);
    for (size_t i = static_cast<size_t>(20 * (channels + 1)); i < loose.y().size(); ++i) {
      ASSERT_TRUE(std::isnan(loose.y()[i]));
    }
  }
  EXPECT_TRUE(same(loose.state(0).out, exact.state(0).out));
  EXPECT_TRUE(same(loose.pages(), exact.pages()));
  EXPECT_TRUE(same(loose.slots(), exact.slots()));
}

}  // namespace
}  // namespace weir::test
