#include "ops/norm/add_norm.h"

#include "base/error.h"
#include "ops/simd/kernel_test.h"

namespace weir {
namespace {

constexpr int64_t kSize = 100;
constexpr int32_t kRows = 3;

struct Problem {
  std::vector<float> stream, out, normed, weight;
  ElementwiseArgs add;
  NormArgs norm;

  Problem() {
    RandomFloats random(1);
    stream = random.take(kRows * kSize);
    out = random.take(kRows * kSize);
    weight = random.take(kSize);
    normed.assign(stream.size(), -7.f);
    add = {.kind = ElementwiseKind::kAddScaled,
           .beta = 0.7f,
           .size = kSize,
           .g = stream.data(),
           .g_stride = kSize,
           .u = out.data(),
           .u_stride = kSize,
           .y = stream.data(),
           .y_stride = kSize};
    norm = {.size = kSize,
            .eps = 1e-5f,
            .weight = weight.data(),
            .x = stream.data(),
            .x_stride = kSize,
            .y = normed.data(),
            .y_stride = kSize};
  }
};

TEST(AddNorm, EqualsTheSumAndThenItsNorm) {
  CpuDevice device(1, KernelSet::kReference);
  StepView step;
  step.rows = kRows;
  Problem both, apart;
  const auto op = bind_add_norm(device, "both", both.add, both.norm);
  op->run(step);
  const auto add = bind_elementwise(device, "add", apart.add), norm = bind_norm(device, "norm", apart.norm);
  add->run(step);
  norm->run(step);
  EXPECT_TRUE(same_floats(apart.stream, both.stream));
  EXPECT_TRUE(same_floats(apart.normed, both.normed));
  EXPECT_NE(both.normed[0], -7.f);
  EXPECT_EQ(op->cost(3, 0).flops, add->cost(3, 0).flops + norm->cost(3, 0).flops);
  EXPECT_EQ(op->cost(3, 0).weight_bytes, norm->cost(3, 0).weight_bytes);
}

TEST(AddNorm, RefusesWhatDoesNotFollowEachOther) {
  CpuDevice device(1, KernelSet::kReference);
  const auto refused = [&](auto change) {
    Problem p;
    change(p);
    EXPECT_THROW(bind_add_norm(device, "both", p.add, p.norm), Error);
  };
  refused([](Problem& p) { p.add.kind = ElementwiseKind::kSwiGlu; });
  refused([](Problem& p) { p.norm.x = p.out.data(); });
  refused([](Problem& p) { p.norm.size = kSize - 1; });
  refused([](Problem& p) { p.norm.rows = RowSet::kLogits; });
  refused([](Problem& p) {
    p.norm.groups = 4;
    p.norm.size = kSize / 4;
  });
  refused([](Problem& p) {
    p.norm.kind = NormKind::kRmsGated;
    p.norm.gate = p.out.data();
    p.norm.gate_stride = kSize;
  });
  refused([](Problem& p) { p.add.u = nullptr; });
  refused([](Problem& p) { p.norm.weight = nullptr; });
}

}  // namespace
}  // namespace weir
