// The gates on a GPU give the CPU's bits.
#include <cmath>
#include <cstring>
#include <deque>
#include <random>

#include "ops/cuda_op.h"
#include "ops/gate/gate.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

class GateCuda : public testing::CudaCase {};

std::vector<float> random_values(int64_t count, float scale, std::mt19937& random) {
  const float specials[] = {0.f, -0.f, 1e-40f, -1e30f, 1e30f, std::nanf("")};
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(random() % 32 == 0 ? specials[random() % 6] : scale * normal(random));
  }
  return values;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

TEST_F(GateCuda, EqualsTheReferenceBitForBitInPlaceAndLeavesOtherRowsAlone) {
  CpuDevice cpu(1, KernelSet::kReference);
  std::mt19937 random(7);
  std::deque<std::vector<float>> weights;  // an address stands for what was uploaded from it
  for (bool bounded : {true, false}) {
    for (int64_t key_dim : {1, 20, 128}) {
      const int64_t heads = 3, rows = 5, decays = heads * key_dim, stride = decays + 3;
      const std::vector<float>& a = weights.emplace_back(random_values(heads, 1, random));
      const std::vector<float>& bias = weights.emplace_back(random_values(decays, 1, random));
      std::vector<float> f = random_values((rows + 1) * stride, 8, random),
                         beta = random_values((rows + 1) * (heads + 1), 8, random);
      testing::DeviceBuffer<float> f_device(device(), f), beta_device(device(), beta);
      KdaGateArgs args{.bounded = bounded, .heads = heads, .key_dim = key_dim, .a = a.data(), .dt_bias = bias.data()};
      args.f_stride = args.g_stride = stride;
      args.beta_logit_stride = args.beta_stride = heads + 1;
      args.f = args.g = f.data();
      args.beta_logit = args.beta = beta.data();
      bind_kda_gate(cpu, "gate", args)->run({.rows = rows});
      args.f = args.g = f_device.data();
      args.beta_logit = args.beta = beta_device.data();
      bind_kda_gate(device(), "gate", args)->run({.rows = rows});
      EXPECT_TRUE(same(f_device.values(), f)) << bounded << " " << key_dim;
      EXPECT_TRUE(same(beta_device.values(), beta)) << bounded << " " << key_dim;
    }
  }
}

TEST_F(GateCuda, BoundsAboveTheStepsRowsWriteNothingMore) {
  const float a = 1.f, bias = 0.f;
  testing::DeviceBuffer<float> f(device(), std::vector<float>{1.f, 2.f, 3.f}),
      beta(device(), std::vector<float>(3, 4.f));
  const KdaGateArgs args{.bounded = false,
                         .heads = 1,
                         .key_dim = 1,
                         .a = &a,
                         .dt_bias = &bias,
                         .f = f.data(),
                         .f_stride = 1,
                         .beta_logit = beta.data(),
                         .beta_logit_stride = 1,
                         .g = f.data(),
                         .g_stride = 1,
                         .beta = beta.data(),
                         .beta_stride = 1};
  const auto op = bind_kda_gate(device(), "gate", args);
  device().stage({.rows = 2});
  static_cast<CudaOp&>(*op).enqueue({.rows = 3});
  EXPECT_EQ(f.values()[2], 3.f);
  EXPECT_EQ(beta.values()[2], 4.f);
  EXPECT_LT(f.values()[1], 0.f);
}

}  // namespace
}  // namespace weir
