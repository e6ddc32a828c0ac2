#include "ops/attn_residual/residual_norm.h"

#include "base/error.h"
#include "ops/simd/kernel_test.h"

namespace weir {
namespace {

constexpr int64_t kSize = 100;
constexpr int32_t kRows = 3;

struct Problem {
  std::vector<float> sealed, stream, out, mixed, normed, weight;
  ResidualNormArgs args;

  Problem() {
    RandomFloats random(1);
    for (std::vector<float>* buffer : {&sealed, &stream, &out}) *buffer = random.take(kRows * kSize);
    weight = random.take(kSize);
    mixed.assign(stream.size(), -7.f);
    normed.assign(stream.size(), -7.f);
    args.add = {.kind = ElementwiseKind::kAdd,
                .size = kSize,
                .g = stream.data(),
                .g_stride = kSize,
                .u = out.data(),
                .u_stride = kSize,
                .y = stream.data(),
                .y_stride = kSize};
    args.residual = {.candidates = {sealed.data(), stream.data()},
                     .stride = kSize,
                     .size = kSize,
                     .weight = weight.data(),
                     .y = mixed.data(),
                     .y_stride = kSize};
    args.norm = {.size = kSize,
                 .eps = 1e-5f,
                 .weight = weight.data(),
                 .x = mixed.data(),
                 .x_stride = kSize,
                 .y = normed.data(),
                 .y_stride = kSize};
  }
};

TEST(ResidualNorm, EqualsItsPartsInTurn) {
  CpuDevice device(1, KernelSet::kReference);
  StepView step;
  step.rows = kRows;
  for (const bool adds : {true, false}) {
    Problem together, apart;
    if (!adds) together.args.add.reset();
    bind_residual_norm(device, "all", together.args)->run(step);
    if (adds) bind_elementwise(device, "add", *apart.args.add)->run(step);
    bind_attn_residual(device, "residual", apart.args.residual)->run(step);
    bind_norm(device, "norm", apart.args.norm)->run(step);
    EXPECT_TRUE(same_floats(apart.stream, together.stream));
    EXPECT_TRUE(same_floats(apart.mixed, together.mixed));
    EXPECT_TRUE(same_floats(apart.normed, together.normed));
    EXPECT_NE(together.normed[0], -7.f);
  }
}

TEST(ResidualNorm, RefusesWhatDoesNotFollowEachOther) {
  CpuDevice device(1, KernelSet::kReference);
  const auto refused = [&](auto change) {
    Problem p;
    change(p);
    EXPECT_THROW(bind_residual_norm(device, "all", p.args), Error);
  };
  refused([](Problem& p) { p.args.add->kind = ElementwiseKind::kAddScaled; });
  refused([](Problem& p) { p.args.add->y = p.sealed.data(); });
  refused([](Problem& p) { p.args.residual.candidates.clear(); });
  refused([](Problem& p) { p.args.residual.weight = nullptr; });
  refused([](Problem& p) { p.args.norm.x = p.stream.data(); });
  refused([](Problem& p) { p.args.norm.rows = RowSet::kLogits; });
  refused([](Problem& p) { p.args.norm.weight = nullptr; });
}

}  // namespace
}  // namespace weir
