#include "engine/sampler_noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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

TEST(GumbelNoise, NoiseStaysBelowItsBound) {
  float largest = 0;
  for (int32_t id = 0; id < 100000; ++id) largest = std::max(largest, gumbel_noise(3, 5, id));
  EXPECT_LT(largest, kMaxGumbel);
  // the largest u below 1 that can be drawn
  EXPECT_LT(-std::log(-std::log(1 - 0x1p-24)), kMaxGumbel);
}

}  // namespace
}  // namespace weir
