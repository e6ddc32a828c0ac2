#include "ops/norm/norm.h"

#include <cmath>

#include "base/error.h"
#include "ops/simd/kernel_test.h"
#include "ops/simd/published_vectors.h"

namespace weir {
namespace {

struct Problem {
  NormKind kind;
  int64_t rows, groups, size;
  std::vector<float> x, gate, weight;
  NormArgs args;

  Problem(NormKind k, int64_t r, int64_t g, int64_t n, Values values, uint64_t seed)
      : kind(k), rows(r), groups(g), size(n) {
    RandomFloats random(seed);
    const int64_t stride = g * n + 3;
    x = random.take((r + 1) * stride, values);
    gate = random.take((r + 1) * stride, values);
    weight = random.take(n, values);
    args = {.kind = k,
            .groups = g,
            .size = n,
            .eps = 1e-5f,
            .scale = 0.3f,
            .weight = weight.data(),
            .x = x.data(),
            .x_stride = stride,
            .gate = gate.data(),
            .gate_stride = stride,
            .y_stride = stride};
  }

  std::vector<float> rows_alone(KernelSet set) {
    std::vector<float> y(x.size(), -7.f);
    args.y = y.data();
    for (int64_t r = 0; r < rows; ++r) norm_kernel(set)(args, r);
    return y;
  }
  std::vector<float> bound(KernelSet set, int threads) {
    std::vector<float> y(x.size(), -7.f);
    args.y = y.data();
    CpuDevice device(threads, set);
    StepView step;
    step.rows = static_cast<int32_t>(rows);
    bind_norm(device, "norm", args)->run(step);
    return y;
  }
};

constexpr NormKind kKinds[] = {NormKind::kRms, NormKind::kRmsPlain, NormKind::kL2, NormKind::kRmsGated,
                               NormKind::kRmsSiluGated};

class NormKernels : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(, NormKernels, kVectorSets, kernel_set_test_name);

TEST_P(NormKernels, EqualTheReferenceBitForBit) {
  uint64_t seed = 1;
  for (const NormKind kind : kKinds) {
    for (const int64_t size : {1, 15, 16, 17, 64, 100, 128, 1000, 7168}) {
      for (const int64_t groups : {1, 3, 8}) {
        for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
          Problem p(kind, 3, groups, size, values, seed++);
          EXPECT_TRUE(same_floats(p.rows_alone(KernelSet::kReference), p.rows_alone(GetParam())))
              << "kind " << static_cast<int>(kind) << " size " << size << " groups " << groups;
        }
      }
    }
  }
}

TEST_P(NormKernels, GiveABatchTheBitsOfItsRowsWithAnyNumberOfThreads) {
  for (const NormKind kind : kKinds) {
    for (const int64_t rows : {0, 1, 5, 67}) {
      Problem p(kind, rows, 2, 1030, Values::kPlain, 9);
      const std::vector<float> alone = p.rows_alone(GetParam());
      EXPECT_TRUE(same_floats(alone, p.bound(GetParam(), 1)));
      EXPECT_TRUE(same_floats(alone, p.bound(GetParam(), 2)));
    }
  }
}

TEST_P(NormKernels, WorkInPlace) {
  Problem p(NormKind::kRms, 6, 4, 37, Values::kPlain, 3);
  const std::vector<float> apart = p.rows_alone(GetParam());
  p.args.y = p.x.data();
  for (int64_t r = 0; r < p.rows; ++r) norm_kernel(GetParam())(p.args, r);
  for (int64_t r = 0; r < p.rows; ++r) {
    const size_t at = static_cast<size_t>(r * p.args.x_stride);
    EXPECT_TRUE(same_floats(std::span(apart).subspan(at, 4 * 37), std::span(p.x).subspan(at, 4 * 37)));
  }
}

TEST(NormReference, FoldsSixteenLanesInTheWrittenOrder) {
  // 2^24 in lane 0 swallows a single 1, so the sum shows which lanes met first: lanes 8 and 0, then 4, 2, 1.
  std::vector<float> x(16, 0.f);
  x[0] = 4096.f;
  x[1] = x[9] = 1.f;  // 1 + 1 = 2 in the first fold, then 2^24 + 2
  std::vector<float> weight(16, 1.f), y(16);
  NormArgs args{.kind = NormKind::kRms,
                .size = 16,
                .weight = weight.data(),
                .x = x.data(),
                .x_stride = 16,
                .y = y.data(),
                .y_stride = 16};
  norm_kernel(KernelSet::kReference)(args, 0);
  EXPECT_EQ(y[1], 1.f / std::sqrt(16777218.f / 16.f));
}

TEST(NormReference, PlainNormsAreThoseWithAWeightOfOnes) {
  Problem plain(NormKind::kRmsPlain, 3, 2, 37, Values::kWide, 21);
  Problem ones(NormKind::kRms, 3, 2, 37, Values::kWide, 21);
  std::ranges::fill(ones.weight, 1.f);
  plain.args.weight = nullptr;
  EXPECT_TRUE(same_floats(ones.rows_alone(KernelSet::kReference), plain.rows_alone(KernelSet::kReference)));
  EXPECT_TRUE(same_floats(ones.bound(KernelSet::kReference, 1), plain.bound(KernelSet::kReference, 1)));
}

void expect_near(const std::vector<float>& expected, const std::vector<float>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(expected[i], found[i], 2e-6 * std::fabs(expected[i]) + 1e-12);
}

TEST(NormReference, MatchesThePublishedVectors) {
  const boost::json::object ops = published_vectors("ops.json").as_object();
  for (const auto& entry : ops.at("rmsnorm").as_array()) {
    const std::vector<float> x = floats(entry.at("x")), w = floats(entry.at("w"));
    std::vector<float> y(x.size());
    const int64_t n = static_cast<int64_t>(x.size());
    NormArgs args{.kind = NormKind::kRms,
                  .size = n,
                  .eps = entry.at("eps").to_number<float>(),
                  .weight = w.data(),
                  .x = x.data(),
                  .x_stride = n,
                  .y = y.data(),
                  .y_stride = n};
    norm_kernel(KernelSet::kReference)(args, 0);
    expect_near(floats(entry.at("y")), y);
  }
  {
    const boost::json::object& entry = ops.at("l2norm").as_object();
    const std::vector<float> x = floats(entry.at("x"));
    std::vector<float> y(x.size());
    const int64_t n = static_cast<int64_t>(x.size());
    NormArgs args{.kind = NormKind::kL2,
                  .size = n,
                  .eps = entry.at("eps_on_sum").to_number<float>(),
                  .x = x.data(),
                  .x_stride = n,
                  .y = y.data(),
                  .y_stride = n};
    norm_kernel(KernelSet::kReference)(args, 0);
    expect_near(floats(entry.at("y")), y);
  }
  const boost::json::object& entry = ops.at("o_norm").as_object();
  const std::vector<float> w = floats(entry.at("w"));
  for (size_t row = 0; row < entry.at("o").as_array().size(); ++row) {
    const std::vector<float> x = floats(entry.at("o").at(row)), gate = floats(entry.at("gate_logits").at(row));
    std::vector<float> y(x.size());
    const int64_t n = static_cast<int64_t>(x.size());
    NormArgs args{.kind = NormKind::kRmsGated,
                  .size = n,
                  .eps = entry.at("eps").to_number<float>(),
                  .weight = w.data(),
                  .x = x.data(),
                  .x_stride = n,
                  .gate = gate.data(),
                  .gate_stride = n,
                  .y = y.data(),
                  .y_stride = n};
    norm_kernel(KernelSet::kReference)(args, 0);
    expect_near(floats(entry.at("y").at(row)), y);
  }
}

// Qwen3NextRMSNormGated of transformers 5.24, in double.
TEST(NormReference, GatesBySiluAfterTheWeight) {
  RandomFloats random(9);
  const int64_t n = 24;
  const std::vector<float> x = random.take(n), gate = random.take(n), weight = random.take(n);
  std::vector<float> y(x.size());
  norm_kernel(KernelSet::kReference)({.kind = NormKind::kRmsSiluGated,
                                      .size = n,
                                      .eps = 1e-6f,
                                      .weight = weight.data(),
                                      .x = x.data(),
                                      .x_stride = n,
                                      .gate = gate.data(),
                                      .gate_stride = n,
                                      .y = y.data(),
                                      .y_stride = n},
                                     0);
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  for (size_t i = 0; i < x.size(); ++i) {
    const double z = gate[i];
    EXPECT_NEAR(y[i], x[i] / std::sqrt(sum / n + 1e-6) * weight[i] * z / (1 + std::exp(-z)), 1e-6);
  }
}

TEST(NormOp, CountsItsWeightOncePerStep) {
  Problem p(NormKind::kRms, 5, 2, 24, Values::kPlain, 3);
  std::vector<float> y(p.x.size());
  p.args.y = y.data();
  CpuDevice device(1, KernelSet::kReference);
  StepView step;
  step.rows = 5;
  bind_norm(device, "norm", p.args)->run(step);
  EXPECT_EQ(device.counters().weight_bytes_read, 24 * 4);
}

TEST(NormOp, CoversTheRowsThatWantLogits) {
  Problem p(NormKind::kRms, 4, 1, 20, Values::kPlain, 3);
  std::vector<float> y(p.x.size(), -7.f);
  p.args.y = y.data();
  p.args.rows = RowSet::kLogits;
  CpuDevice device(1, KernelSet::kReference);
  StepView step;
  step.rows = 4;
  const int32_t logit_rows[] = {1, 3};  // already gathered to rows 0 and 1
  step.logit_rows = logit_rows;
  bind_norm(device, "norm", p.args)->run(step);
  const size_t stride = static_cast<size_t>(p.args.y_stride);
  EXPECT_NE(y[stride], -7.f);
  EXPECT_EQ(y[2 * stride], -7.f);
}

TEST(NormOp, RefusesMissingWeightsAndShortStrides) {
  Problem p(NormKind::kRmsGated, 1, 1, 24, Values::kPlain, 3);
  std::vector<float> y(p.x.size());
  CpuDevice device(1, KernelSet::kReference);
  const auto refused = [&](auto change) {
    NormArgs args = p.args;
    args.y = y.data();
    change(args);
    EXPECT_THROW(bind_norm(device, "norm", args), Error);
  };
  refused([](NormArgs& a) { a.weight = nullptr; });
  refused([](NormArgs& a) { a.gate = nullptr; });
  refused([](NormArgs& a) { a.x_stride = 23; });
  refused([](NormArgs& a) { a.size = 0; });
}

}  // namespace
}  // namespace weir
