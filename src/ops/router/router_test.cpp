#include "ops/router/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/simd/kernel_test.h"
#include "ops/simd/published_vectors.h"

namespace weir {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(KernelSet set, RouterArgs args, const std::vector<float>& logits, const std::vector<float>& bias) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / args.experts;
  Routed out{std::vector<int32_t>(static_cast<size_t>(rows * args.top_k), -1),
             std::vector<float>(static_cast<size_t>(rows * args.top_k))};
  args.logits = logits.data();
  args.logits_stride = args.experts;
  args.bias = bias.empty() ? nullptr : bias.data();
  args.ids = out.ids.data();
  args.weights = out.weights.data();
  std::vector<std::byte> scratch(static_cast<size_t>(router_scratch_bytes(args.experts)));
  for (int64_t row = 0; row < rows; ++row) router_kernel(set)(args, row, scratch.data());
  return out;
}

class RouterKernels : public KernelTest {
 protected:
  void expect_equal(const RouterArgs& args, const std::vector<float>& logits, const std::vector<float>& bias) {
    const Routed expected = route(KernelSet::kReference, args, logits, bias);
    const Routed found = route(GetParam(), args, logits, bias);
    EXPECT_EQ(expected.ids, found.ids);
    EXPECT_TRUE(same_floats(expected.weights, found.weights));
  }
};
INSTANTIATE_TEST_SUITE_P(, RouterKernels, kVectorSets, kernel_set_test_name);

struct Shape {
  int64_t experts, top_k, groups, topk_group;
};
constexpr RouterScore kScores[] = {RouterScore::kSigmoid, RouterScore::kSoftmax, RouterScore::kSoftmaxOfChosen};

constexpr Shape kShapes[] = {{1, 1, 1, 1},   {6, 3, 1, 1},     {16, 16, 1, 1},  {17, 5, 1, 1},  {64, 8, 8, 3},
                             {60, 4, 5, 2},  {256, 8, 8, 4},   {896, 16, 1, 1}, {40, 40, 4, 4}, {24, 6, 24, 6},
                             {24, 24, 2, 2}, {384, 12, 12, 5}, {48, 3, 16, 1}};

TEST_P(RouterKernels, EqualTheReference) {
  RandomFloats random(1);
  for (const Shape& s : kShapes) {
    for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
      for (const int kind : {0, 1, 2, 3, 4, 5}) {
        const RouterScore score = kScores[kind % 3];
        const bool renormalize = kind < 3 || score == RouterScore::kSoftmaxOfChosen;
        const RouterArgs args{.score = score,
                              .experts = s.experts,
                              .top_k = s.top_k,
                              .groups = s.groups,
                              .topk_group = s.topk_group,
                              .renormalize = renormalize,
                              .scaling_factor = 2.446f};
        expect_equal(args, random.take(s.experts * 20, values), random.take(s.experts, values));
        expect_equal(args, random.take(s.experts * 20, values), {});
        const std::vector<float> factors = random.take(s.experts, values);
        RouterArgs scaled = args;
        scaled.expert_scale = factors.data();
        expect_equal(scaled, random.take(s.experts * 20, values), {});
      }
    }
  }
}

TEST_P(RouterKernels, BreakTiesLikeTheReference) {
  RandomFloats random(2);
  for (const Shape& s : kShapes) {
    // Few distinct values, NaN among them: ties everywhere, also between groups.
    const float levels[] = {0.f, 1.f, -1.f, kNan, kInfinity, -kInfinity};
    std::vector<float> logits(static_cast<size_t>(s.experts * 50)), bias(static_cast<size_t>(s.experts));
    for (float& v : logits) v = levels[random.below(6)];
    for (float& v : bias) v = levels[random.below(3)];
    for (const RouterScore score : kScores) {
      const RouterArgs args{
          .score = score, .experts = s.experts, .top_k = s.top_k, .groups = s.groups, .topk_group = s.topk_group};
      expect_equal(args, logits, bias);
      expect_equal(args, logits, {});
    }
  }
}

TEST_P(RouterKernels, GiveABatchTheChoiceOfItsRowsWithAnyNumberOfThreads) {
  RandomFloats random(3);
  for (const int64_t rows : {0, 1, 7, 130}) {
    const int64_t experts = 64;
    const std::vector<float> logits = random.take(rows * experts), bias = random.take(experts);
    const RouterArgs args{.experts = experts, .top_k = 6, .groups = 4, .topk_group = 2};
    const Routed alone = route(GetParam(), args, logits, bias);
    for (const int threads : {1, 2}) {
      CpuDevice device(threads, GetParam());
      std::vector<int32_t> ids(alone.ids.size() + 1);
      std::vector<float> weights(alone.weights.size() + 1);
      RouterArgs bound = args;
      bound.bias = bias.data();
      bound.logits = rows > 0 ? logits.data() : bias.data();
      bound.logits_stride = experts;
      bound.ids = ids.data();
      bound.weights = weights.data();
      StepView step;
      step.rows = static_cast<int32_t>(rows);
      bind_router(device, "router", bound)->run(step);
      ids.pop_back();
      weights.pop_back();
      EXPECT_EQ(alone.ids, ids);
      EXPECT_TRUE(same_floats(alone.weights, weights));
    }
  }
}

TEST(RouterReference, FactorsOfExpertsMultiplyTheWeightsLast) {
  RandomFloats random(8);
  const std::vector<float> logits = random.take(12 * 20), factors = random.take(12);
  RouterArgs args{.score = RouterScore::kSoftmax, .experts = 12, .top_k = 3, .scaling_factor = 1.5f};
  const Routed plain = route(KernelSet::kReference, args, logits, {});
  args.expert_scale = factors.data();
  const Routed scaled = route(KernelSet::kReference, args, logits, {});
  EXPECT_EQ(plain.ids, scaled.ids);
  for (size_t i = 0; i < plain.weights.size(); ++i) {
    EXPECT_EQ(scaled.weights[i], plain.weights[i] * factors[static_cast<size_t>(plain.ids[i])]);
  }
}

TEST(RouterReference, MatchesThePublishedVectors) {
  const boost::json::value published = published_vectors("ops.json");
  for (const auto& entry : published.at("router").as_array()) {
    const std::vector<float> logits = floats(entry.at("logits")), bias = floats(entry.at("bias"));
    const std::vector<float> weights = floats(entry.at("weights"));
    std::vector<std::pair<int32_t, float>> expected;  // published in descending choice, wanted in ascending id
    for (size_t i = 0; i < weights.size(); ++i)
      expected.emplace_back(entry.at("ids").at(i).to_number<int>(), weights[i]);
    std::sort(expected.begin(), expected.end());
    const Routed found = route(KernelSet::kReference,
                               {.experts = static_cast<int64_t>(logits.size()),
                                .top_k = entry.at("top_k").to_number<int>(),
                                .renormalize = entry.at("top_k").to_number<int>() > 1,  // as Kimi's
                                .scaling_factor = entry.at("scale").to_number<float>()},
                               logits, bias);
    ASSERT_EQ(expected.size(), found.ids.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(expected[i].first, found.ids[i]) << entry.at("name");
      EXPECT_NEAR(expected[i].second, found.weights[i], 1e-6 * std::fabs(expected[i].second)) << entry.at("name");
    }
  }
}

std::vector<int32_t> chosen(const RouterArgs& args, const std::vector<float>& logits) {
  return route(KernelSet::kReference, args, logits, std::vector<float>(logits.size(), 0.f)).ids;
}

TEST(RouterReference, PrefersTheLowestIdOnTies) {
  EXPECT_EQ(chosen({.experts = 5, .top_k = 2}, {1, 2, 2, 2, 0}), (std::vector<int32_t>{1, 2}));
}

TEST(RouterReference, CountsNanBelowEverything) {
  EXPECT_EQ(chosen({.experts = 4, .top_k = 2}, {kNan, -kInfinity, kNan, -50.f}), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(chosen({.experts = 4, .top_k = 3}, {kNan, kNan, kNan, -50.f}), (std::vector<int32_t>{0, 1, 3}));
}

TEST(RouterReference, ALoneExpertIsDividedByItselfWhereAskedFor) {
  for (const RouterScore score : {RouterScore::kSigmoid, RouterScore::kSoftmax}) {
    RouterArgs args{.score = score, .experts = 3, .top_k = 1, .scaling_factor = 2.5f};
    EXPECT_EQ(route(KernelSet::kReference, args, {0, 0, 0}, {0, 1, -1}).weights, std::vector<float>{2.5f});
    args.renormalize = false;
    EXPECT_LT(route(KernelSet::kReference, args, {0, 0, 0}, {0, 1, -1}).weights[0], 2.f);
  }
}

TEST(RouterReference, RanksGroupsByTheSumOfTheirTwoBest) {
  // Group 0 has the best expert, group 1 the best pair.
  const RouterArgs args{.experts = 6, .top_k = 2, .groups = 2, .topk_group = 1};
  EXPECT_EQ(chosen(args, {5, -9, -9, 2, 2, -9}), (std::vector<int32_t>{3, 4}));
  // Equal groups: the lowest stays.
  EXPECT_EQ(chosen(args, {1, 2, 3, 3, 2, 1}), (std::vector<int32_t>{1, 2}));
  // A group whose score is not a number goes first.
  EXPECT_EQ(chosen(args, {5, kNan, kNan, -8, -8, -9}), (std::vector<int32_t>{3, 4}));
}

TEST(RouterReference, RanksGroupsOfOneByTheirMember) {
  EXPECT_EQ(chosen({.experts = 4, .top_k = 2, .groups = 4, .topk_group = 2}, {0, 3, 1, 2}),
            (std::vector<int32_t>{1, 3}));
}

TEST(RouterReference, ChoosesAllWhenTopKIsAll) {
  const Routed all = route(KernelSet::kReference, {.experts = 3, .top_k = 3}, {0, 0, 0}, {5, -5, 0});
  EXPECT_EQ(all.ids, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_FLOAT_EQ(all.weights[0] + all.weights[1] + all.weights[2], 1.f);
}

// The published formulas (Qwen3MoeTopKRouter, GptOssTopKRouter of transformers 5.24) in double.
std::vector<double> softmax(std::vector<double> x) {
  const double most = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v - most);
  for (double& v : x) v /= sum;
  return x;
}

TEST(RouterReference, WeighsBySoftmax) {
  RandomFloats random(5);
  for (const int64_t top_k : {1, 3, 8}) {
    for (const int64_t experts : {8, 21, 64}) {
      const std::vector<float> logits = random.take(experts);
      const std::vector<double> all = softmax({logits.begin(), logits.end()});
      for (const bool renormalize : {true, false}) {
        const Routed found =
            route(KernelSet::kReference,
                  {.score = RouterScore::kSoftmax, .experts = experts, .top_k = top_k, .renormalize = renormalize},
                  logits, {});
        double sum = 0;
        for (const int32_t id : found.ids) sum += all[static_cast<size_t>(id)];
        for (size_t k = 0; k < found.ids.size(); ++k) {
          const double expected = all[static_cast<size_t>(found.ids[k])] / (renormalize ? sum : 1);
          EXPECT_NEAR(found.weights[k], expected, 1e-6 * expected);
        }
      }
      const Routed found =
          route(KernelSet::kReference, {.score = RouterScore::kSoftmaxOfChosen, .experts = experts, .top_k = top_k},
                logits, {});
      std::vector<double> chosen_logits;
      for (const int32_t id : found.ids) chosen_logits.push_back(logits[static_cast<size_t>(id)]);
      const std::vector<double> weights = softmax(chosen_logits);
      for (size_t k = 0; k < weights.size(); ++k) EXPECT_NEAR(found.weights[k], weights[k], 1e-6 * weights[k]);
      // The largest logits, whichever the score.
      std::vector<float> sorted = logits;
      std::sort(sorted.rbegin(), sorted.rend());
      for (const double logit : chosen_logits) EXPECT_GE(logit, sorted[static_cast<size_t>(top_k - 1)]);
    }
  }
}

TEST(RouterReference, PrefersTheLowestIdOnTiesOfEveryScore) {
  for (const RouterScore score : kScores) {
    EXPECT_EQ(chosen({.score = score, .experts = 5, .top_k = 2}, {1, 2, 2, 2, 0}), (std::vector<int32_t>{1, 2}));
  }
}

TEST(RouterOp, RefusesWhatCannotBeChosen) {
  CpuDevice device(1, KernelSet::kReference);
  std::vector<float> v(64);
  std::vector<int32_t> ids(64);
  const RouterArgs good{.experts = 16,
                        .top_k = 4,
                        .groups = 4,
                        .topk_group = 1,
                        .bias = v.data(),
                        .logits = v.data(),
                        .logits_stride = 16,
                        .ids = ids.data(),
                        .weights = v.data()};
  EXPECT_NO_THROW(bind_router(device, "router", good));
  RouterArgs unbiased = good;
  unbiased.bias = nullptr;
  EXPECT_NO_THROW(bind_router(device, "router", unbiased));
  const auto refused = [&](auto change) {
    RouterArgs args = good;
    change(args);
    EXPECT_THROW(bind_router(device, "router", args), Error);
  };
  refused([](RouterArgs& a) { a.top_k = 5; });
  refused([](RouterArgs& a) { a.groups = 3; });
  refused([](RouterArgs& a) { a.topk_group = 5; });
  refused([](RouterArgs& a) { a.logits = nullptr; });
  refused([](RouterArgs& a) {
    a.score = RouterScore::kSoftmaxOfChosen;
    a.renormalize = false;
  });
  refused([](RouterArgs& a) { a.logits_stride = 15; });
}

}  // namespace
}  // namespace weir
