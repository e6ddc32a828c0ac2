#include <cmath>
#include <deque>

#include "base/error.h"
#include "base/math.h"
#include "base/number.h"
#include "ops/cuda_op.h"
#include "ops/norm/add_norm.h"
#include "ops/norm/layer_norm.h"
#include "ops/norm/norm.h"
#include "ops/norm/unit_order_testing.h"
#include "ops/simd/kernel_test.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;
using testing::unit_sum;

class NormCuda : public testing::CudaCase {};

constexpr NormKind kKinds[] = {NormKind::kRms, NormKind::kRmsPlain, NormKind::kL2, NormKind::kRmsGated,
                               NormKind::kRmsSiluGated};

StepView step_of(int64_t rows) {
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  return step;
}

struct Problem {
  int64_t rows, groups, size, stride;
  std::vector<float> x, gate, weight;
  NormArgs args;

  // pad: elements between rows; 4 keeps quads aligned where the size does.
  Problem(NormKind kind, int64_t r, int64_t g, int64_t n, int64_t pad, Values values, uint64_t seed)
      : rows(r), groups(g), size(n), stride(g * n + pad) {
    RandomFloats random(seed);
    x = random.take((r + 2) * stride, values);
    gate = random.take((r + 2) * stride, values);
    weight = random.take(n, values);
    args = {.kind = kind,
            .groups = g,
            .size = n,
            .eps = 1e-5f,
            .scale = 0.3f,
            .weight = weight.data(),
            .x_stride = stride,
            .gate_stride = stride,
            .y_stride = stride};
  }

  // norm.h, "On CUDA".
  std::vector<float> expected() const {
    std::vector<float> y(x.size(), std::nanf(""));
    for (int64_t unit = 0; unit < rows * groups; ++unit) {
      const auto at = static_cast<size_t>(unit / groups * stride + unit % groups * size);
      const float ss = unit_sum(size, [&](float sum, int64_t k) {
        const float v = x[at + static_cast<size_t>(k)];
        return math::fma(v, v, sum);
      });
      const float mean = args.kind == NormKind::kL2 ? ss : ss / static_cast<float>(size);
      const float r = 1.f / math::sqrt(mean + args.eps);
      for (size_t k = 0; k < static_cast<size_t>(size); ++k) {
        float v = x[at + k] * r;
        if (args.kind == NormKind::kL2) v = v * args.scale;
        if (args.kind != NormKind::kL2 && args.kind != NormKind::kRmsPlain) v = v * weight[k];
        if (args.kind == NormKind::kRmsGated) v = v * math::sigmoid(gate[at + k]);
        if (args.kind == NormKind::kRmsSiluGated) v = v * math::silu(gate[at + k]);
        y[at + k] = v;
      }
    }
    return y;
  }

  // With the bounds of more rows than there are.
  std::vector<float> on(CudaDevice& device, int64_t spare_rows = 2) {
    DeviceBuffer<float> dx(device, x), dgate(device, gate), dy(device, static_cast<int64_t>(x.size()));
    NormArgs a = args;
    a.x = dx.data();
    a.gate = dgate.data();
    a.y = dy.data();
    const auto op = bind_norm(device, "norm", a);
    device.stage(step_of(rows));
    StepBounds bounds;
    bounds.rows = static_cast<int32_t>(rows + spare_rows);
    dynamic_cast<CudaOp&>(*op).enqueue(bounds);
    return dy.values();
  }
};

TEST_F(NormCuda, EqualsTheOrderOfItsHeaderBitForBit) {
  struct Shape {
    int64_t rows, groups, size, pad;
  };
  const Shape shapes[] = {{3, 1, 1, 0},    {2, 3, 3, 1},    {3, 5, 128, 4},  {2, 2, 100, 8},  {2, 1, 511, 3},
                          {2, 1, 512, 0},  {2, 1, 513, 2},  {2, 1, 516, 4},  {2, 2, 1000, 0}, {2, 1, 2304, 4},
                          {1, 1, 7168, 0}, {1, 1, 8191, 0}, {1, 1, 8196, 0}, {1, 1, 16384, 0}};
  uint64_t seed = 1;
  std::deque<Problem> problems;  // uploads go by host address: weights stay
  for (const NormKind kind : kKinds) {
    for (const Shape& s : shapes) {
      for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
        Problem& p = problems.emplace_back(kind, s.rows, s.groups, s.size, s.pad, values, seed++);
        EXPECT_TRUE(same_floats(p.expected(), p.on(device())))
            << "kind " << static_cast<int>(kind) << ", " << s.groups << " x " << s.size;
      }
    }
  }
}

// The CPU sums in another order: both are within a few roundings of the exact sum of squares, which are all positive.
TEST_F(NormCuda, IsCloseToTheCpu) {
  std::deque<Problem> problems;
  for (const NormKind kind : kKinds) {
    for (const int64_t size : {100, 128, 2304}) {
      Problem& p = problems.emplace_back(kind, 2, 2, size, 4, Values::kPlain, 77);
      const std::vector<float> found = p.on(device());
      std::vector<float> y(p.x.size());
      p.args.x = p.x.data();
      p.args.gate = p.gate.data();
      p.args.y = y.data();
      for (int64_t row = 0; row < p.rows; ++row) norm_kernel(KernelSet::kReference)(p.args, row);
      for (int64_t i = 0; i < p.rows * p.stride; ++i) {
        if (i % p.stride >= p.groups * size) continue;
        const auto k = static_cast<size_t>(i);
        EXPECT_NEAR(found[k], y[k], 2e-6f * std::fabs(y[k])) << size << " at " << i;
      }
    }
  }
}

TEST_F(NormCuda, GivesABatchTheBitsOfItsRows) {
  std::deque<Problem> problems;
  for (const int64_t rows : {0, 1, 70}) {
    for (const int64_t size : {40, 600}) {
      Problem& p = problems.emplace_back(NormKind::kRmsGated, rows, 3, size, 4, Values::kPlain, 5);
      const std::vector<float> batch = p.on(device());
      for (int64_t row = 0; row < rows; row += 23) {
        Problem alone = p;
        alone.args.weight = p.weight.data();
        alone.rows = 1;
        const auto begin = static_cast<size_t>(row * p.stride), end = begin + static_cast<size_t>(3 * p.stride);
        alone.x.assign(p.x.begin() + static_cast<int64_t>(begin), p.x.begin() + static_cast<int64_t>(end));
        alone.gate.assign(p.gate.begin() + static_cast<int64_t>(begin), p.gate.begin() + static_cast<int64_t>(end));
        const std::vector<float> one = alone.on(device(), 0);
        EXPECT_TRUE(same_floats(std::span(batch).subspan(begin, static_cast<size_t>(3 * size)),
                                std::span(one).first(static_cast<size_t>(3 * size))));
      }
    }
  }
}

TEST_F(NormCuda, MayWriteOverItsInput) {
  Problem p(NormKind::kRms, 2, 1, 2304, 0, Values::kPlain, 6);
  DeviceBuffer<float> x(device(), p.x);
  NormArgs a = p.args;
  a.x = x.data();
  a.y = x.data();
  bind_norm(device(), "norm", a)->run(step_of(2));
  const std::vector<float> expected = p.expected(), found = x.values();
  const auto rows = static_cast<size_t>(2 * p.stride);
  EXPECT_TRUE(same_floats(std::span(expected).first(rows), std::span(found).first(rows)));
}

TEST_F(NormCuda, NormsTheRowsThatWantLogits) {
  Problem p(NormKind::kRms, 2, 1, 64, 0, Values::kPlain, 7);
  DeviceBuffer<float> x(device(), p.x), y(device(), static_cast<int64_t>(p.x.size()));
  NormArgs a = p.args;
  a.x = x.data();
  a.y = y.data();
  a.rows = RowSet::kLogits;
  const std::vector<int32_t> logit_rows = {3, 5};
  StepView step = step_of(4);
  step.logit_rows = logit_rows;
  bind_norm(device(), "norm", a)->run(step);
  EXPECT_TRUE(same_floats(p.expected(), y.values()));
}

TEST_F(NormCuda, RefusesUnitsThatABlockCannotHold) {
  Problem p(NormKind::kRms, 1, 1, 16385, 0, Values::kPlain, 8);
  DeviceBuffer<float> x(device(), p.x);
  NormArgs a = p.args;
  a.x = x.data();
  a.y = x.data();
  EXPECT_THROW(bind_norm(device(), "norm", a), Error);
}

// --- rows of BF16 --------------------------------------------------------------------------------------------------

std::vector<uint16_t> rounded(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float v : values) bits.push_back(std::isnan(v) ? 0xffff : f32_to_bf16(v));
  return bits;
}

TEST_F(NormCuda, RoundsWhatItWouldWriteAndNothingBeyond) {
  uint64_t seed = 1;
  std::deque<Problem> problems;
  for (const NormKind kind : kKinds) {
    for (const int64_t size : {3, 128, 1000, 2304, 8197}) {
      Problem& p = problems.emplace_back(kind, 3, 2, size, size % 4 == 0 ? 4 : 1, Values::kWide, seed++);
      DeviceBuffer<float> x(device(), p.x), gate(device(), p.gate);
      DeviceBuffer<uint16_t> y(device(), static_cast<int64_t>(p.x.size()));
      NormArgs a = p.args;
      a.x = x.data();
      a.gate = gate.data();
      a.y = y.data();
      a.y_type = RowType::kBf16;
      bind_norm(device(), "norm", a)->run(step_of(p.rows));
      EXPECT_EQ(rounded(p.expected()), y.values()) << "kind " << static_cast<int>(kind) << ", " << size;
    }
  }
}

// Rounded by the norm or by the product: the same bits, for few rows and for more.
TEST_F(NormCuda, GivesProductsTheRowsThatTheyWouldMakeOfIts) {
  constexpr int64_t kOut = 40, kSize = 2304;
  const std::vector<float> weight = RandomFloats(9).take(kOut * kSize);
  std::deque<Problem> problems;  // uploads go by host address: weights stay
  for (const int64_t rows : {1, 3, 20, 70}) {
    const Problem& p =
        problems.emplace_back(NormKind::kRms, rows, 1, kSize, 0, Values::kPlain, static_cast<uint64_t>(rows));
    DeviceBuffer<float> x(device(), p.x);
    DeviceBuffer<uint32_t> normed(device(), static_cast<int64_t>(p.x.size()));
    const auto product = [&](RowType type) {
      normed.poison();
      NormArgs norm = p.args;
      norm.x = x.data();
      norm.y = normed.data();
      norm.y_type = type;
      bind_norm(device(), "norm", norm)->run(step_of(rows));
      DeviceBuffer<float> y(device(), rows * kOut);
      bind_linear(device(), "product",
                  {.weight = {.format = WeightFormat::kF32,
                              .out = kOut,
                              .in = p.args.size,
                              .data = reinterpret_cast<const std::byte*>(weight.data()),
                              .row_bytes = p.args.size * 4},
                   .x = normed.data(),
                   .x_stride = p.stride,
                   .y = y.data(),
                   .y_stride = kOut,
                   .x_type = type,
                   .activations = Activations::kAuto,
                   .max_rows = static_cast<int32_t>(rows)})
          ->run(step_of(rows));
      return y.values();
    };
    EXPECT_TRUE(same_floats(product(RowType::kF32), product(RowType::kBf16))) << rows << " rows";
  }
}

TEST_F(NormCuda, RefusesToRoundOverItsInput) {
  Problem p(NormKind::kRms, 1, 1, 64, 0, Values::kPlain, 8);
  DeviceBuffer<float> x(device(), p.x);
  NormArgs a = p.args;
  a.x = x.data();
  a.y = x.data();
  a.y_type = RowType::kBf16;
  EXPECT_THROW(bind_norm(device(), "norm", a), Error);
}

// --- the sum with its norm ------------------------------------------------------------------------------------------

TEST_F(NormCuda, TheSumWithItsNormEqualsBothAlone) {
  uint64_t seed = 1;
  std::deque<std::vector<float>> weights;
  for (const NormKind kind : {NormKind::kRms, NormKind::kRmsPlain, NormKind::kL2}) {
    for (const int64_t size : {5, 128, 1000, 2304, 8196}) {
      for (const float beta : {1.f, 0.7f}) {
        RandomFloats random(seed++);
        constexpr int64_t kRows = 3;
        const std::vector<float> g = random.take(kRows * size), u = random.take(kRows * size);
        const std::vector<float>& weight = weights.emplace_back(random.take(size));
        DeviceBuffer<float> stream(device(), g), out(device(), u), y(device(), kRows * size);
        ElementwiseArgs add{.kind = beta == 1 ? ElementwiseKind::kAdd : ElementwiseKind::kAddScaled,
                            .beta = beta == 1 ? 9.f : beta,  // kAdd has no factor
                            .size = size,
                            .g = stream.data(),
                            .g_stride = size,
                            .u = out.data(),
                            .u_stride = size,
                            .y = stream.data(),
                            .y_stride = size};
        NormArgs norm{.kind = kind,
                      .size = size,
                      .eps = 1e-5f,
                      .scale = 2,
                      .weight = weight.data(),
                      .x = stream.data(),
                      .x_stride = size,
                      .y = y.data(),
                      .y_stride = size};
        bind_add_norm(device(), "both", add, norm)->run(step_of(kRows));
        const std::vector<float> sum = stream.values(), normed = y.values();
        stream.set(g);
        y.poison();
        bind_elementwise(device(), "add", add)->run(step_of(kRows));
        bind_norm(device(), "norm", norm)->run(step_of(kRows));
        EXPECT_TRUE(same_floats(stream.values(), sum)) << size;
        EXPECT_TRUE(same_floats(y.values(), normed)) << size;
        stream.set(g);
        DeviceBuffer<uint16_t> bf16(device(), kRows * size);
        norm.y = bf16.data();
        norm.y_type = RowType::kBf16;
        bind_add_norm(device(), "both", add, norm)->run(step_of(kRows));
        EXPECT_EQ(rounded(normed), bf16.values()) << size;
      }
    }
  }
}

// --- LayerNorm ------------------------------------------------------------------------------------------------------

TEST_F(NormCuda, LayerNormEqualsTheOrderOfItsHeaderBitForBit) {
  uint64_t seed = 1;
  std::deque<std::vector<float>> weights;
  for (const int64_t size : {1, 2, 7, 128, 257, 512, 1030, 9000}) {
    for (const Values values : {Values::kPlain, Values::kSpecial}) {
      RandomFloats random(seed++);
      constexpr int64_t kRows = 5;
      const int64_t stride = size + (size % 4 == 0 ? 4 : 1);
      const std::vector<float> x = random.take((kRows + 1) * stride, values);
      const std::vector<float>& w = weights.emplace_back(random.take(size));
      const std::vector<float>& b = weights.emplace_back(random.take(size));
      std::vector<float> expected(x.size(), std::nanf(""));
      for (int64_t row = 0; row < kRows; ++row) {
        const auto at = static_cast<size_t>(row * stride);
        const auto n = static_cast<float>(size);
        const float mean =
            unit_sum(size, [&](float sum, int64_t k) { return sum + x[at + static_cast<size_t>(k)]; }) / n;
        const float ss = unit_sum(size, [&](float sum, int64_t k) {
          const float d = x[at + static_cast<size_t>(k)] - mean;
          return math::fma(d, d, sum);
        });
        const float r = 1.f / math::sqrt(ss / n + 1e-6f);
        for (size_t k = 0; k < static_cast<size_t>(size); ++k) {
          expected[at + k] = ((x[at + k] - mean) * r) * w[k] + b[k];
        }
      }
      DeviceBuffer<float> dx(device(), x), y(device(), static_cast<int64_t>(x.size()));
      bind_layer_norm(device(), "norm",
                      {.size = size,
                       .eps = 1e-6f,
                       .weight = w.data(),
                       .bias = b.data(),
                       .x = dx.data(),
                       .x_stride = stride,
                       .y = y.data(),
                       .y_stride = stride})
          ->run(step_of(kRows));
      EXPECT_TRUE(same_floats(expected, y.values())) << size;
    }
  }
}

}  // namespace
}  // namespace weir
