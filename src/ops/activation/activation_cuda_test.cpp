#include <cmath>

#include "base/number.h"
#include "ops/activation/activation.h"
#include "ops/cuda_op.h"
#include "ops/simd/kernel_test.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;

class ElementwiseCuda : public testing::CudaCase {};

constexpr ElementwiseKind kKinds[] = {
    ElementwiseKind::kSwiGlu, ElementwiseKind::kSitu,   ElementwiseKind::kGeGlu,   ElementwiseKind::kClampedSwiGlu,
    ElementwiseKind::kAdd,    ElementwiseKind::kGate,   ElementwiseKind::kGateRow, ElementwiseKind::kAddScaled,
    ElementwiseKind::kCopy,   ElementwiseKind::kSoftCap};

StepView step_of(int64_t rows) {
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  return step;
}

struct Problem {
  int64_t rows, stride;
  std::vector<float> g, u;
  ElementwiseArgs args;

  Problem(ElementwiseKind kind, int64_t r, int64_t size, int64_t pad, float linear_beta, Values values, uint64_t seed)
      : rows(r), stride(size + pad) {
    RandomFloats random(seed);
    g = random.take((r + 2) * stride, values);
    u = random.take((r + 2) * stride, values);
    args = {.kind = kind,
            .beta = 4,
            .linear_beta = linear_beta,
            .size = size,
            .g_stride = stride,
            .u_stride = stride,
            .y_stride = stride};
  }

  std::vector<float> expected() const {
    std::vector<float> y(g.size(), std::nanf(""));
    for (int64_t row = 0; row < rows; ++row) {
      elementwise_kernel(KernelSet::kReference)(args.kind, args.beta, args.linear_beta, g.data() + row * stride,
                                                u.data() + row * stride, y.data() + row * stride, args.size);
    }
    return y;
  }
};

TEST_F(ElementwiseCuda, EqualsTheReferenceBitForBitAndWritesNothingBeyond) {
  uint64_t seed = 1;
  for (const ElementwiseKind kind : kKinds) {
    for (const int64_t size : {1, 7, 64, 1030, 4096}) {
      for (const int64_t rows : {0, 1, 5, 80}) {
        if (rows * size > 60000) continue;
        for (const Values values : {Values::kPlain, Values::kSpecial}) {
          const Problem p(kind, rows, size, size % 4 == 0 ? 4 : 1, seed % 3 == 0 ? 0.f : 25.f, values, seed);
          ++seed;
          if (kind == ElementwiseKind::kClampedSwiGlu && p.args.linear_beta == 0) continue;
          DeviceBuffer<float> g(device(), p.g), u(device(), p.u), y(device(), static_cast<int64_t>(p.g.size()));
          ElementwiseArgs a = p.args;
          a.g = g.data();
          a.u = u.data();
          a.y = y.data();
          const auto op = bind_elementwise(device(), "op", a);
          device().stage(step_of(rows));
          StepBounds bounds;
          bounds.rows = static_cast<int32_t>(rows + 2);
          dynamic_cast<CudaOp&>(*op).enqueue(bounds);
          EXPECT_TRUE(same_floats(p.expected(), y.values()))
              << "kind " << static_cast<int>(kind) << ", " << rows << " x " << size;
          if (values == Values::kSpecial) continue;  // a NaN's payload is not specified
          DeviceBuffer<uint16_t> bf16(device(), y.size());
          a.y = bf16.data();
          a.y_type = RowType::kBf16;
          bind_elementwise(device(), "op", a)->run(step_of(rows));
          std::vector<uint16_t> rounded;
          for (const float v : p.expected()) rounded.push_back(std::isnan(v) ? 0xffff : f32_to_bf16(v));
          EXPECT_EQ(rounded, bf16.values()) << "kind " << static_cast<int>(kind) << ", " << rows << " x " << size;
        }
      }
    }
  }
}

TEST_F(ElementwiseCuda, MayWriteOverEitherInput) {
  for (const ElementwiseKind kind : kKinds) {
    if (kind == ElementwiseKind::kGateRow) continue;  // its u is one number a row
    const Problem p(kind, 3, 300, 0, 25, Values::kPlain, 2);
    const std::vector<float> expected = p.expected();
    for (const bool over_g : {true, false}) {
      DeviceBuffer<float> g(device(), p.g), u(device(), p.u);
      ElementwiseArgs a = p.args;
      a.g = g.data();
      a.u = u.data();
      a.y = over_g ? g.data() : u.data();
      bind_elementwise(device(), "op", a)->run(step_of(3));
      const std::vector<float> found = over_g ? g.values() : u.values();
      EXPECT_TRUE(same_floats(std::span(expected).first(900), std::span(found).first(900)));
    }
  }
}

TEST_F(ElementwiseCuda, ComputesTheRowsThatWantLogits) {
  const Problem p(ElementwiseKind::kSoftCap, 2, 64, 0, 0, Values::kPlain, 3);
  DeviceBuffer<float> g(device(), p.g), y(device(), static_cast<int64_t>(p.g.size()));
  ElementwiseArgs a = p.args;
  a.g = g.data();
  a.y = y.data();
  a.rows = RowSet::kLogits;
  const std::vector<int32_t> logit_rows = {0, 6};
  StepView step = step_of(7);
  step.logit_rows = logit_rows;
  bind_elementwise(device(), "op", a)->run(step);
  EXPECT_TRUE(same_floats(p.expected(), y.values()));
}

}  // namespace
}  // namespace weir
