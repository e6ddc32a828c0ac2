#include "ops/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"

namespace weir {
namespace {

// Error in units of the last place of the exact value rounded to FP32.
double ulps(float found, long double exact) {
  const float near = std::fabs(static_cast<float>(exact));
  const float above = std::nextafter(near, INFINITY);
  return static_cast<double>(std::fabs(static_cast<long double>(found) - exact)) / (above - near);
}

TEST(SinCos, IsWithin051UlpOfTheExactValueUpToTwoToThe24) {
  std::mt19937_64 random(1);
  double worst = 0;
  const auto check = [&](float angle) {
    const SinCos value = sin_cos(angle);
    worst = std::max({worst, ulps(value.sin, sinl(angle)), ulps(value.cos, cosl(angle))});
  };
  for (int i = 0; i < 400000; ++i) {
    const double exponent = std::uniform_real_distribution<double>(-30, 24)(random);
    const float angle = static_cast<float>(std::exp2(exponent));
    check(i % 2 ? angle : -angle);
  }
  for (int i = 0; i < 200000; ++i) check(static_cast<float>(random() % (1 << 24)));
  // The FP32 numbers nearest to multiples of pi/2, where the reduction cancels most.
  for (int64_t k = 1; k < 10680000; k += 13)
    check(static_cast<float>(static_cast<long double>(k) * 1.57079632679489661923L));
  check(0x1p24f);
  EXPECT_LT(worst, 0.51);
}

TEST(SinCos, IsExactAtZeroAndRefusesWhatItCannotReduce) {
  EXPECT_EQ(sin_cos(0.f).sin, 0.f);
  EXPECT_EQ(sin_cos(-0.f).cos, 1.f);
  for (float angle : {INFINITY, -INFINITY, NAN, std::nextafter(0x1p24f, INFINITY)}) {
    EXPECT_TRUE(std::isnan(sin_cos(angle).sin));
    EXPECT_TRUE(std::isnan(sin_cos(angle).cos));
  }
}

TEST(RopeAngles, AreTheFp32ProductOfPositionAndFrequencyTimesTheFactor) {
  CpuDevice device(2, KernelSet::kReference);
  const std::vector<float> inv_freq{1.f, 0.31622776f, 0.1f};
  const std::vector<int64_t> positions{0, 7, 1000003};
  std::vector<float> cos(9), sin(9);
  const auto op = bind_rope_angles(
      device, "angles",
      {.inv_freq = inv_freq.data(), .pairs = 3, .attention_factor = 1.25f, .cos = cos.data(), .sin = sin.data()});
  op->run({.rows = 3, .positions = positions});
  for (size_t r = 0; r < 3; ++r) {
    for (size_t i = 0; i < 3; ++i) {
      const float angle = static_cast<float>(positions[r]) * inv_freq[i];
      EXPECT_EQ(cos[3 * r + i], sin_cos(angle).cos * 1.25f);
      EXPECT_EQ(sin[3 * r + i], sin_cos(angle).sin * 1.25f);
    }
  }
}

struct Rotation {
  RopePairing pairing;
  int64_t rows, heads, head_stride, pairs;
  std::vector<float> cos, sin, x;
  int64_t x_stride() const { return heads * head_stride + 3; }
  RopeArgs args() {
    return {.pairing = pairing,
            .heads = heads,
            .head_stride = head_stride,
            .pairs = pairs,
            .cos = cos.data(),
            .sin = sin.data(),
            .x = x.data(),
            .x_stride = x_stride()};
  }
};

Rotation random_rotation(std::mt19937& random, RopePairing pairing, int64_t pairs) {
  Rotation r{pairing, 3, 2, 2 * pairs + 5, pairs, {}, {}, {}};
  std::normal_distribution<float> normal;
  const float special[] = {0.f, -0.f, INFINITY, 1e-42f, -3e38f, 1e-38f, NAN};
  for (int64_t i = 0; i < r.rows * pairs; ++i) {
    const SinCos value = sin_cos(100 * normal(random));
    r.cos.push_back(value.cos);
    r.sin.push_back(value.sin);
  }
  for (int64_t i = 0; i < r.rows * r.x_stride(); ++i) {
    r.x.push_back(random() % 8 == 0 ? special[random() % 7] : normal(random));
  }
  return r;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], 4) != 0) return false;
  }
  return a.size() == b.size();
}

TEST(Rope, RotatesAsComplexNumbersDo) {
  std::mt19937 random(2);
  for (RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
    const int64_t pairs = 2;
    std::vector<float> cos(pairs), sin(pairs), x{1, 2, 3, 4, 5}, before = x;
    for (size_t i = 0; i < 2; ++i) {
      const SinCos value = sin_cos(0.5f + static_cast<float>(i));
      cos[i] = value.cos;
      sin[i] = value.sin;
    }
    rope_kernel(KernelSet::kReference)({.pairing = pairing,
                                        .heads = 1,
                                        .head_stride = 5,
                                        .pairs = pairs,
                                        .cos = cos.data(),
                                        .sin = sin.data(),
                                        .x = x.data(),
                                        .x_stride = 5},
                                       0);
    for (size_t i = 0; i < 2; ++i) {
      const size_t first = pairing == RopePairing::kHalfSplit ? i : 2 * i;
      const size_t second = pairing == RopePairing::kHalfSplit ? i + 2 : 2 * i + 1;
      const double angle = 0.5 + static_cast<double>(i);
      EXPECT_NEAR(x[first], before[first] * std::cos(angle) - before[second] * std::sin(angle), 1e-6);
      EXPECT_NEAR(x[second], before[second] * std::cos(angle) + before[first] * std::sin(angle), 1e-6);
    }
    EXPECT_EQ(x[4], 5.f);
  }
}

TEST(Rope, EveryKernelSetGivesTheBitsOfTheReference) {
  std::mt19937 random(3);
  for (KernelSet set : {KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (!kernel_set_supported(set)) {
      std::printf("skipped: %s\n", kernel_set_name(set).data());
      continue;
    }
    for (RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved, RopePairing::kInterleavedToHalf}) {
      for (int64_t pairs : {1, 3, 8, 9, 15, 16, 17, 24, 31, 32, 64, 70}) {
        Rotation expected = random_rotation(random, pairing, pairs);
        Rotation found = expected;
        for (int64_t row = 0; row < expected.rows; ++row) {
          rope_kernel(KernelSet::kReference)(expected.args(), row);
          rope_kernel(set)(found.args(), row);
        }
        EXPECT_TRUE(same_bits(expected.x, found.x)) << kernel_set_name(set) << ", " << pairs << " pairs";
      }
    }
  }
}

TEST(Rope, InterleavedToHalfRotatesAsHalfSplitDoesWhatWasInterleaved) {
  std::mt19937 random(5);
  for (int64_t pairs : {1, 3, 16, 17, 64}) {
    Rotation half = random_rotation(random, RopePairing::kHalfSplit, pairs);
    Rotation mixed = half;
    mixed.pairing = RopePairing::kInterleavedToHalf;
    for (int64_t row = 0; row < half.rows; ++row) {
      for (int64_t head = 0; head < half.heads; ++head) {
        const auto at = static_cast<size_t>(row * half.x_stride() + head * half.head_stride);
        for (int64_t i = 0; i < pairs; ++i) {
          mixed.x[at + static_cast<size_t>(2 * i)] = half.x[at + static_cast<size_t>(i)];
          mixed.x[at + static_cast<size_t>(2 * i + 1)] = half.x[at + static_cast<size_t>(i + pairs)];
        }
      }
      rope_kernel(KernelSet::kReference)(half.args(), row);
      rope_kernel(KernelSet::kReference)(mixed.args(), row);
    }
    EXPECT_TRUE(same_bits(half.x, mixed.x)) << pairs << " pairs";
  }
}

TEST(Rope, GivesTheSameBitsWithOneThreadAndTwoAndAcceptsNoRows) {
  std::mt19937 random(4);
  Rotation one = random_rotation(random, RopePairing::kInterleaved, 20);
  Rotation two = one;
  CpuDevice single(1, best_kernel_set()), pair(2, best_kernel_set());
  bind_rope(single, "rope", one.args())->run({.rows = 3});
  bind_rope(pair, "rope", two.args())->run({.rows = 3});
  EXPECT_TRUE(same_bits(one.x, two.x));
  bind_rope(pair, "rope", two.args())->run({.rows = 0});
  EXPECT_TRUE(same_bits(one.x, two.x));
}

TEST(Rope, RefusesARotaryDimensionLargerThanTheHead) {
  CpuDevice device(1, KernelSet::kReference);
  EXPECT_THROW(bind_rope(device, "rope", {.heads = 1, .head_stride = 8, .pairs = 5}), Error);
  EXPECT_THROW(bind_rope(device, "rope", {.heads = 1, .head_stride = 8, .pairs = 0}), Error);
  EXPECT_THROW(bind_rope(device, "rope",
                         {.pairing = RopePairing::kInterleavedToHalf,
                          .heads = 1,
                          .head_stride = 4096,
                          .pairs = kRopeMostReordered + 1}),
               Error);
  EXPECT_THROW(bind_rope_angles(device, "angles", {.pairs = 0}), Error);
}

}  // namespace
}  // namespace weir
