#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "ops/attention/attention_testing.h"
#include "ops/cuda_op.h"
#include "ops/rope/rope.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;
using RopeOnCuda = testing::CudaCase;

std::vector<float> random_floats(std::mt19937& random, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& f : x) f = std::normal_distribution<float>()(random);
  return x;
}

TEST_F(RopeOnCuda, AnglesAndRotationsHaveTheBitsOfTheCpu) {
  std::mt19937 random(1);
  PagedSequences pages(random, 2, 70000, 16);
  const StepView step = pages.step({{0, 0, 9}, {1, 69990, 5}});
  CpuDevice cpu(1, KernelSet::kReference);
  for (int64_t pairs : {1, 8, 33, 64, 200}) {
    for (RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved, RopePairing::kInterleavedToHalf}) {
      const int64_t heads = 5, head = 2 * pairs + 3, rows = step.rows, spare = 2;
      std::vector<float> inv_freq;
      for (int64_t i = 0; i < pairs; ++i) {
        inv_freq.push_back(std::pow(10000.f, -static_cast<float>(i) / static_cast<float>(pairs)));
      }
      std::vector<float> cos(static_cast<size_t>((rows + spare) * pairs), 7.f), sin = cos;
      std::vector<float> x = random_floats(random, (rows + spare) * heads * head);
      const DeviceBuffer<float> cos_there(device(), cos), sin_there(device(), sin), x_there(device(), x);
      RopeAnglesArgs angles{
          .inv_freq = inv_freq.data(), .pairs = pairs, .attention_factor = 1.1f, .cos = cos.data(), .sin = sin.data()};
      RopeArgs rope{.pairing = pairing,
                    .heads = heads,
                    .head_stride = head,
                    .pairs = pairs,
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .x = x.data(),
                    .x_stride = heads * head};
      bind_rope_angles(cpu, "angles", angles)->run(step);
      bind_rope(cpu, "rope", rope)->run(step);
      angles.cos = cos_there.data(), angles.sin = sin_there.data();
      rope.cos = cos_there.data(), rope.sin = sin_there.data(), rope.x = x_there.data();
      const auto angles_op = bind_rope_angles(device(), "angles", angles);
      const auto rope_op = bind_rope(device(), "rope", rope);
      device().stage(step);
      StepBounds bounds = CudaDevice::bounds_of(step);
      bounds.rows += spare;  // rows that the step doesn't have stay as they are
      static_cast<CudaOp&>(*angles_op).enqueue(bounds);
      static_cast<CudaOp&>(*rope_op).enqueue(bounds);
      EXPECT_EQ(cos_there.values(), cos) << pairs;
      EXPECT_EQ(sin_there.values(), sin) << pairs;
      EXPECT_EQ(x_there.values(), x) << pairs << " pairs, pairing " << static_cast<int>(pairing);
    }
  }
}

}  // namespace
}  // namespace weir
