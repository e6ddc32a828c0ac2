#include <cmath>
#include <deque>

#include "base/error.h"
#include "base/math.h"
#include "base/number.h"
#include "ops/attn_residual/residual_norm.h"
#include "ops/cuda_op.h"
#include "ops/norm/unit_order_testing.h"
#include "ops/simd/kernel_test.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;
using testing::unit_sum;

class AttnResidualCuda : public testing::CudaCase {};

StepView step_of(int64_t rows) {
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  return step;
}

struct Problem {
  int64_t rows, size, stride;
  std::vector<std::vector<float>> candidates;
  std::vector<float> weight;

  Problem(int64_t r, int64_t n, int count, Values values, uint64_t seed)
      : rows(r), size(n), stride(n + (n % 4 == 0 ? 4 : 1)) {
    RandomFloats random(seed);
    for (int i = 0; i < count; ++i) candidates.push_back(random.take((r + 2) * stride, values));
    weight = random.take(n, values == Values::kSpecial ? Values::kWide : values);
    if (values == Values::kPlain) {
      for (float& w : weight) w *= 0.1f;  // several candidates keep a visible share
    }
  }
  Problem row_alone(int64_t row) const {
    Problem alone = *this;
    alone.rows = 1;
    for (auto& c : alone.candidates) c.erase(c.begin(), c.begin() + row * stride);
    return alone;
  }

  // attn_residual.h, "On CUDA".
  std::vector<float> expected() const {
    std::vector<float> y(candidates[0].size(), std::nanf(""));
    for (int64_t row = 0; row < rows; ++row) {
      float most = 0, z = 0;
      std::vector<float> sum(static_cast<size_t>(size), 0.f);
      for (size_t i = 0; i < candidates.size(); ++i) {
        const float* v = candidates[i].data() + row * stride;
        const float ss = unit_sum(size, [&](float s, int64_t k) { return math::fma(v[k], v[k], s); });
        const float dot =
            unit_sum(size, [&](float s, int64_t k) { return math::fma(v[k], weight[static_cast<size_t>(k)], s); });
        const float score = dot * (1.f / math::sqrt(ss / static_cast<float>(size) + 1e-5f));
        const bool above = i == 0 || score > most;
        const float kept = i > 0 && above ? math::exp(most - score) : 1.f;
        const float e = above ? 1.f : math::exp(score - most);
        if (above) most = score;
        z = math::fma(z, kept, e);
        for (size_t k = 0; k < sum.size(); ++k) sum[k] = math::fma(e, v[k], sum[k] * kept);
      }
      const float share = 1.f / z;
      for (size_t k = 0; k < sum.size(); ++k) y[static_cast<size_t>(row * stride) + k] = sum[k] * share;
    }
    return y;
  }

  AttnResidualArgs args(const std::vector<const float*>& pointers, float* y) const {
    return {.candidates = pointers,
            .stride = stride,
            .size = size,
            .eps = 1e-5f,
            .weight = weight.data(),
            .y = y,
            .y_stride = stride};
  }

  // With the bounds of more rows than there are.
  std::vector<float> on(CudaDevice& device) const {
    std::deque<DeviceBuffer<float>> buffers;
    std::vector<const float*> pointers;
    for (const auto& c : candidates) pointers.push_back(buffers.emplace_back(device, c).data());
    DeviceBuffer<float> y(device, static_cast<int64_t>(candidates[0].size()));
    const auto op = bind_attn_residual(device, "residual", args(pointers, y.data()));
    device.stage(step_of(rows));
    StepBounds bounds;
    bounds.rows = static_cast<int32_t>(rows + 1);
    dynamic_cast<CudaOp&>(*op).enqueue(bounds);
    return y.values();
  }
};

TEST_F(AttnResidualCuda, EqualsTheOrderOfItsHeaderBitForBit) {
  uint64_t seed = 1;
  std::deque<Problem> problems;  // uploads go by host address: weights stay
  for (const int count : {1, 2, 5, 9, 64}) {
    for (const int64_t size : {1, 17, 64, 1000, 2304, 7168, 8200}) {
      if (count == 64 && size > 1000) continue;
      for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
        const Problem& p = problems.emplace_back(2, size, count, values, seed++);
        EXPECT_TRUE(same_floats(p.expected(), p.on(device()))) << count << " candidates of " << size;
      }
    }
  }
}

// Shares differ from the CPU's by roundings of the scores (sums in another order) and of the running rescaling.
TEST_F(AttnResidualCuda, IsCloseToTheCpu) {
  std::deque<Problem> problems;
  for (const int count : {1, 2, 8}) {
    for (const int64_t size : {64, 1000}) {
      const Problem& p = problems.emplace_back(3, size, count, Values::kPlain, 9);
      std::vector<const float*> pointers;
      for (const auto& c : p.candidates) pointers.push_back(c.data());
      std::vector<float> y(p.candidates[0].size());
      const AttnResidualArgs args = p.args(pointers, y.data());
      for (int64_t row = 0; row < p.rows; ++row) attn_residual_kernel(KernelSet::kReference)(args, row);
      const std::vector<float> found = p.on(device());
      for (int64_t i = 0; i < p.rows * p.stride; ++i) {
        if (i % p.stride >= size) continue;
        EXPECT_NEAR(found[static_cast<size_t>(i)], y[static_cast<size_t>(i)], 4e-6) << i;
      }
    }
  }
}

// A block for each row of the batch, a cluster for a row alone.
TEST_F(AttnResidualCuda, GivesABatchTheBitsOfItsRows) {
  const Problem p(100, 600, 7, Values::kPlain, 3);
  const std::vector<float> batch = p.on(device());
  std::deque<Problem> problems;
  for (int64_t row = 0; row < p.rows; row += 13) {
    const std::vector<float> alone = problems.emplace_back(p.row_alone(row)).on(device());
    EXPECT_TRUE(
        same_floats(std::span(batch).subspan(static_cast<size_t>(row * p.stride), 600), std::span(alone).first(600)));
  }
}

TEST_F(AttnResidualCuda, WithItsSumAndNormEqualsTheThreeAlone) {
  uint64_t seed = 1;
  std::deque<Problem> problems;
  for (const bool adds : {false, true}) {
    for (const int64_t size : {30, 128, 1000, 7168}) {
      const Problem& p = problems.emplace_back(3, size, 4, Values::kPlain, seed++);
      const auto n = static_cast<int64_t>(p.candidates[0].size());
      DeviceBuffer<float> first(device(), p.candidates[0]), second(device(), p.candidates[1]),
          stream(device(), p.candidates[2]), out(device(), p.candidates[3]), mixed(device(), n), normed(device(), n);
      const ElementwiseArgs add{.kind = ElementwiseKind::kAdd,
                                .size = size,
                                .g = stream.data(),
                                .g_stride = p.stride,
                                .u = out.data(),
                                .u_stride = p.stride,
                                .y = stream.data(),
                                .y_stride = p.stride};
      ResidualNormArgs args{.add = {},
                            .residual = p.args({first.data(), second.data(), stream.data()}, mixed.data()),
                            .norm = {.kind = NormKind::kRms,
                                     .size = size,
                                     .eps = 1e-5f,
                                     .weight = p.weight.data(),
                                     .x = mixed.data(),
                                     .x_stride = p.stride,
                                     .y = normed.data(),
                                     .y_stride = p.stride}};
      if (adds) args.add = add;
      bind_residual_norm(device(), "all", args)->run(step_of(3));
      const std::vector<float> sum = stream.values(), mixture = mixed.values(), result = normed.values();
      stream.set(p.candidates[2]);
      mixed.poison();
      normed.poison();
      if (adds) bind_elementwise(device(), "add", add)->run(step_of(3));
      bind_attn_residual(device(), "residual", args.residual)->run(step_of(3));
      bind_norm(device(), "norm", args.norm)->run(step_of(3));
      EXPECT_TRUE(same_floats(stream.values(), sum)) << size;
      EXPECT_TRUE(same_floats(mixed.values(), mixture)) << size;
      EXPECT_TRUE(same_floats(normed.values(), result)) << size;
      stream.set(p.candidates[2]);
      DeviceBuffer<uint16_t> bf16(device(), n);
      args.norm.y = bf16.data();
      args.norm.y_type = RowType::kBf16;
      bind_residual_norm(device(), "all", args)->run(step_of(3));
      std::vector<uint16_t> rounded;
      for (const float v : result) rounded.push_back(std::isnan(v) ? 0xffff : f32_to_bf16(v));
      EXPECT_EQ(rounded, bf16.values()) << size;
    }
  }
}

}  // namespace
}  // namespace weir
