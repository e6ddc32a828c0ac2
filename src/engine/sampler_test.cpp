#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace weir {
namespace {

// Known answers of Philox4x32-10 (Random123, kat_vectors).
TEST(Philox, MatchesThePublishedVectors) {
  const PhiloxWords zeros = philox4x32(0, 0, 0);
  EXPECT_EQ(zeros.word[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.word[1], 0xe169c58du);
  EXPECT_EQ(zeros.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros.word[3], 0x9b00dbd8u);
  const PhiloxWords ones = philox4x32(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 2, 3}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-0.f, 0.f}, {}, 0), 0);
  EXPECT_EQ(sample(std::vector<float>{-5}, {}, 0), 0);
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(sample(std::vector<float>{1, std::nanf(""), 2}, {}, 0));
  EXPECT_FALSE(sample(std::vector<float>{1, inf}, {}, 0));
  EXPECT_FALSE(sample(std::vector<float>{-inf, -inf}, {}, 0));
  EXPECT_EQ(sample(std::vector<float>{-inf, -3}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-inf, -3}, {.temperature = 1, .seed = 1}, 0), 1);
}

TEST(Sampler, FollowsTheSoftmax) {
  const std::vector<float> logits = {0, 1, 2, -1};
  const float temperature = 1.5f;
  double z = 0;
  for (float l : logits) z += std::exp(l / temperature);
  std::vector<int> counts(4);
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(*sample(logits, {temperature, 42}, i))];
  for (size_t i = 0; i < 4; ++i) {
    const double p = std::exp(logits[i] / temperature) / z;
    // five standard deviations of a binomial count
    EXPECT_NEAR(counts[i], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws)) << i;
  }
}

TEST(Sampler, SkippingHopelessIdsChangesNothing) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 1000) * 0.05f;
  for (int64_t position = 0; position < 200; ++position) {
    int32_t best = -1;
    float best_score = -std::numeric_limits<float>::infinity();
    for (int32_t id = 0; id < 1000; ++id) {
      const float largest = *std::max_element(logits.begin(), logits.end());
      const float score = (logits[static_cast<size_t>(id)] - largest) / 0.7f + gumbel_noise(9, position, id);
      if (score > best_score) {
        best_score = score;
        best = id;
      }
    }
    EXPECT_EQ(sample(logits, {0.7f, 9}, position), best);
  }
}

TEST(Sampler, TinyTemperaturesAreGreedy) {
  const std::vector<float> logits = {1, 3, 2, 2.9f};
  for (float temperature : {1e-20f, 1e-38f, 1e-45f}) EXPECT_EQ(sample(logits, {temperature, 5}, 7), 1) << temperature;
}

TEST(Sampler, NoiseStaysBelowItsBound) {
  float largest = 0;
  for (int32_t id = 0; id < 100000; ++id) largest = std::max(largest, gumbel_noise(3, 5, id));
  EXPECT_LT(largest, kMaxGumbel);
  // the largest u below 1 that can be drawn
  EXPECT_LT(-std::log(-std::log(1 - 0x1p-24)), kMaxGumbel);
}

}  // namespace
}  // namespace weir
