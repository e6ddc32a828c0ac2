#include "ops/attn_residual/attn_residual.h"

#include <cmath>

#include "base/error.h"
#include "ops/simd/kernel_test.h"
#include "ops/simd/published_vectors.h"

namespace weir {
namespace {

struct Problem {
  int64_t rows, size;
  std::vector<std::vector<float>> candidates;
  std::vector<float> weight;
  AttnResidualArgs args;

  Problem(int64_t r, int64_t n, int count, Values values, uint64_t seed) : rows(r), size(n) {
    RandomFloats random(seed);
    for (int i = 0; i < count; ++i) candidates.push_back(random.take((r + 1) * (n + 5), values));
    weight = random.take(n, values == Values::kSpecial ? Values::kWide : values);
    if (values == Values::kPlain) {
      for (float& w : weight) w *= 0.1f;  // several candidates keep a visible share
    }
    for (const auto& c : candidates) args.candidates.push_back(c.data());
    args.stride = n + 5;
    args.size = n;
    args.weight = weight.data();
    args.y_stride = n + 1;
  }
  std::vector<float> rows_alone(KernelSet set) {
    std::vector<float> y(static_cast<size_t>((rows + 1) * args.y_stride), -7.f);
    args.y = y.data();
    for (int64_t row = 0; row < rows; ++row) attn_residual_kernel(set)(args, row);
    return y;
  }
};

class AttnResidualKernels : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(, AttnResidualKernels, kVectorSets, kernel_set_test_name);

TEST_P(AttnResidualKernels, EqualTheReferenceBitForBit) {
  uint64_t seed = 1;
  for (const int count : {1, 2, 3, 4, 5, 9, 17, 64}) {
    for (const int64_t size : {1, 16, 17, 64, 79, 1000}) {
      for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
        Problem p(4, size, count, values, seed++);
        EXPECT_TRUE(same_floats(p.rows_alone(KernelSet::kReference), p.rows_alone(GetParam())))
            << count << " candidates of " << size;
      }
    }
  }
}

TEST_P(AttnResidualKernels, GiveABatchTheBitsOfItsRowsWithAnyNumberOfThreads) {
  for (const int64_t rows : {0, 1, 3, 40}) {
    Problem p(rows, 200, 9, Values::kPlain, 5);
    const std::vector<float> alone = p.rows_alone(GetParam());
    for (const int threads : {1, 2}) {
      std::vector<float> y(alone.size(), -7.f);
      p.args.y = y.data();
      CpuDevice device(threads, GetParam());
      StepView step;
      step.rows = static_cast<int32_t>(rows);
      bind_attn_residual(device, "res", p.args)->run(step);
      EXPECT_TRUE(same_floats(alone, y));
    }
  }
}

TEST(AttnResidualReference, MatchesThePublishedVectors) {
  const boost::json::value published = published_vectors("ops.json");
  for (const auto& entry : published.at("attnres").as_array()) {
    std::vector<std::vector<float>> candidates;
    for (const auto& c : entry.at("candidates").as_array()) candidates.push_back(floats(c));
    const std::vector<float> weight = floats(entry.at("w")), expected = floats(entry.at("out"));
    const int64_t n = static_cast<int64_t>(weight.size());
    std::vector<float> y(weight.size());
    AttnResidualArgs args{.stride = n, .size = n, .weight = weight.data(), .y = y.data(), .y_stride = n};
    for (const auto& c : candidates) args.candidates.push_back(c.data());
    attn_residual_kernel(KernelSet::kReference)(args, 0);
    for (size_t d = 0; d < y.size(); ++d) {
      EXPECT_NEAR(expected[d], y[d], 2e-6 * std::fabs(expected[d]) + 1e-9) << entry.at("name");
    }
  }
}

TEST(AttnResidualReference, ReturnsASingleCandidateUnchanged) {
  Problem p(2, 21, 1, Values::kPlain, 3);
  const std::vector<float> y = p.rows_alone(KernelSet::kReference);
  for (int64_t d = 0; d < 21; ++d) EXPECT_EQ(y[static_cast<size_t>(d)], p.candidates[0][static_cast<size_t>(d)]);
}

TEST(AttnResidualOp, RefusesWrongArguments) {
  Problem p(1, 20, 3, Values::kPlain, 3);
  std::vector<float> y(40);
  CpuDevice device(1, KernelSet::kReference);
  p.args.y = y.data();
  EXPECT_NO_THROW(bind_attn_residual(device, "res", p.args));
  const auto refused = [&](auto change) {
    AttnResidualArgs args = p.args;
    change(args);
    EXPECT_THROW(bind_attn_residual(device, "res", args), Error);
  };
  refused([](AttnResidualArgs& a) { a.candidates.clear(); });
  refused([](AttnResidualArgs& a) { a.candidates.resize(65, a.candidates[0]); });
  refused([](AttnResidualArgs& a) { a.candidates[1] = a.y; });
  refused([](AttnResidualArgs& a) { a.stride = 19; });
  refused([](AttnResidualArgs& a) { a.weight = nullptr; });
}

}  // namespace
}  // namespace weir
