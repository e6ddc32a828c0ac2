#include <limits>

#include "ops/cuda_op.h"
#include "ops/router/router.h"
#include "ops/simd/kernel_test.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;
using RouterCuda = testing::CudaCase;

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed on_cpu(RouterArgs args, const std::vector<float>& logits, const std::vector<float>& bias) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / args.experts;
  Routed out{std::vector<int32_t>(static_cast<size_t>(rows * args.top_k)),
             std::vector<float>(static_cast<size_t>(rows * args.top_k))};
  args.logits = logits.data();
  args.logits_stride = args.experts;
  args.bias = bias.empty() ? nullptr : bias.data();
  args.ids = out.ids.data();
  args.weights = out.weights.data();
  std::vector<std::byte> scratch(static_cast<size_t>(router_scratch_bytes(args.experts)));
  for (int64_t row = 0; row < rows; ++row) router_kernel(KernelSet::kReference)(args, row, scratch.data());
  return out;
}

// The bounds have two rows more than the step.
Routed on_device(CudaDevice& device, RouterArgs args, const std::vector<float>& logits,
                 const std::vector<float>& bias) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / args.experts;
  DeviceBuffer<float> x(device, logits), weights(device, (rows + 2) * args.top_k);
  DeviceBuffer<int32_t> ids(device, (rows + 2) * args.top_k);
  args.logits = x.data();
  args.logits_stride = args.experts;
  args.bias = bias.empty() ? nullptr : bias.data();
  args.ids = ids.data();
  args.weights = weights.data();
  const auto op = bind_router(device, "router", args);
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  device.stage(step);
  static_cast<CudaOp&>(*op).enqueue({.rows = step.rows + 2});
  Routed out{ids.values(), weights.values()};
  const auto end = static_cast<size_t>(rows * args.top_k);
  for (size_t i = end; i < out.ids.size(); ++i) {
    EXPECT_EQ(out.ids[i], -1);
    EXPECT_TRUE(out.weights[i] != out.weights[i]);
  }
  out.ids.resize(end);
  out.weights.resize(end);
  return out;
}

void expect_equal(CudaDevice& device, const RouterArgs& args, const std::vector<float>& logits,
                  const std::vector<float>& bias) {
  const Routed expected = on_cpu(args, logits, bias), found = on_device(device, args, logits, bias);
  EXPECT_EQ(expected.ids, found.ids) << args.experts << " experts, top " << args.top_k << ", " << args.groups;
  EXPECT_TRUE(same_floats(expected.weights, found.weights)) << args.experts << " experts, top " << args.top_k;
}

struct Shape {
  int64_t experts, top_k, groups, topk_group;
};
constexpr RouterScore kScores[] = {RouterScore::kSigmoid, RouterScore::kSoftmax, RouterScore::kSoftmaxOfChosen};
constexpr Shape kShapes[] = {{1, 1, 1, 1},   {6, 3, 1, 1},     {16, 16, 1, 1},  {17, 5, 1, 1},  {64, 8, 8, 3},
                             {60, 4, 5, 2},  {256, 8, 8, 4},   {896, 16, 1, 1}, {40, 40, 4, 4}, {24, 6, 24, 6},
                             {24, 24, 2, 2}, {384, 12, 12, 5}, {48, 3, 16, 1},  {1500, 9, 1, 1}};

TEST_F(RouterCuda, GivesTheBitsOfTheReference) {
  RandomFloats random(1);
  std::vector<std::vector<float>> kept;  // uploads are known by their address
  for (const Shape& s : kShapes) {
    for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
      for (const int kind : {0, 1, 2, 3, 4, 5}) {
        const RouterScore score = kScores[kind % 3];
        RouterArgs args{.score = score,
                        .experts = s.experts,
                        .top_k = s.top_k,
                        .groups = s.groups,
                        .topk_group = s.topk_group,
                        .renormalize = kind < 3 || score == RouterScore::kSoftmaxOfChosen,
                        .scaling_factor = 2.446f};
        expect_equal(device(), args, random.take(s.experts * 3, values),
                     kept.emplace_back(random.take(s.experts, values)));
        args.expert_scale = kept.emplace_back(random.take(s.experts, values)).data();
        expect_equal(device(), args, random.take(s.experts * 3, values), {});
      }
    }
  }
}

// More rows than a few for each multiprocessor have blocks of another size.
TEST_F(RouterCuda, GivesManyRowsTheBitsOfTheReference) {
  RandomFloats random(4);
  const int64_t rows = 2 * device().sm_count() + 1;
  std::vector<std::vector<float>> kept;
  for (const Shape& s : {Shape{896, 16, 1, 1}, Shape{256, 8, 8, 4}, Shape{17, 5, 1, 1}}) {
    for (const RouterScore score : kScores) {
      const RouterArgs args{
          .score = score, .experts = s.experts, .top_k = s.top_k, .groups = s.groups, .topk_group = s.topk_group};
      expect_equal(device(), args, random.take(rows * s.experts, Values::kPlain),
                   kept.emplace_back(random.take(s.experts, Values::kPlain)));
    }
  }
}

TEST_F(RouterCuda, BreaksTiesLikeTheReference) {
  RandomFloats random(2);
  std::vector<std::vector<float>> kept;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  // Few distinct values, NaN and both zeros among them: ties everywhere, also between groups.
  const float levels[] = {0.f, 1.f, -1.f, -0.f, kNan, kInfinity, -kInfinity};
  for (const Shape& s : kShapes) {
    std::vector<float> logits(static_cast<size_t>(s.experts * 8));
    std::vector<float>& bias = kept.emplace_back(static_cast<size_t>(s.experts));
    for (float& v : logits) v = levels[random.below(7)];
    for (float& v : bias) v = levels[random.below(4)];
    for (const RouterScore score : kScores) {
      const RouterArgs args{
          .score = score, .experts = s.experts, .top_k = s.top_k, .groups = s.groups, .topk_group = s.topk_group};
      expect_equal(device(), args, logits, bias);
      expect_equal(device(), args, logits, {});
    }
  }
}

TEST_F(RouterCuda, GivesABatchTheChoiceOfItsRows) {
  RandomFloats random(3);
  const int64_t experts = 64;
  const std::vector<float> logits = random.take(20 * experts), bias = random.take(experts);
  const RouterArgs args{.experts = experts, .top_k = 6, .groups = 4, .topk_group = 2};
  const Routed batch = on_device(device(), args, logits, bias);
  for (int64_t row = 0; row < 20; ++row) {
    const Routed alone =
        on_device(device(), args, {logits.begin() + row * experts, logits.begin() + (row + 1) * experts}, bias);
    EXPECT_TRUE(std::equal(alone.ids.begin(), alone.ids.end(), batch.ids.begin() + row * 6));
    EXPECT_TRUE(same_floats(alone.weights, std::span(batch.weights).subspan(static_cast<size_t>(row * 6), 6)));
  }
}

}  // namespace
}  // namespace weir
