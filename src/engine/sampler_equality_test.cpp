// Every kernel set against the specification, and against the plain function.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "engine/sampler.h"
#include "engine/sampler_test_reference.h"

namespace weir {
namespace {

class SamplerKernels : public KernelTest {
 protected:
  static std::optional<int32_t> id(Sampler& sampler, const std::vector<float>& logits, const Request& r) {
    const auto token = sampler.sample(logits, r.options, r.history(), r.position, r.generated(), r.allowed);
    return token ? std::optional(token->id) : std::nullopt;
  }
};
INSTANTIATE_TEST_SUITE_P(All, SamplerKernels,
                         testing::Values(KernelSet::kReference, KernelSet::kAvx2, KernelSet::kAvx512),
                         kernel_set_test_name);

TEST_P(SamplerKernels, AgreeWithTheSpecificationInPlainLoops) {
  RandomFloats random(7);
  int sampled = 0, nothing = 0;
  for (const int64_t n : {1, 2, 5, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 777, 4099}) {
    Sampler sampler(n, GetParam());
    for (int i = 0; i < (n > 1000 ? 60 : 200); ++i) {
      const std::vector<float> logits = some_logits(random, n);
      const Request r = some_request(random, n);
      const std::vector<float> l = plain_adjusted(logits, r);
      const auto found = id(sampler, logits, r);
      if (std::ranges::all_of(l, [](float x) { return x == -kInf; })) {
        ASSERT_FALSE(found);
        ++nothing;
        continue;
      }
      ++sampled;
      ASSERT_TRUE(found);
      ASSERT_EQ(*found, plain_choice(logits, r))
          << n << " logits, T " << r.options.temperature << ", k " << r.options.top_k << ", p " << r.options.top_p
          << ", min p " << r.options.min_p << ", case " << i;
    }
  }
  EXPECT_GT(sampled, 2000);
  EXPECT_GT(nothing, 10);
}

// Each id that the filters keep is drawn, and no other: the noise at many positions reaches all of a small set.
TEST_P(SamplerKernels, KeepExactlyTheFilteredSet) {
  RandomFloats random(8);
  Sampler sampler(300, GetParam());
  for (int i = 0; i < 20; ++i) {
    std::vector<float> logits = some_logits(random, 300);
    Request r;
    r.options = {.temperature = 40, .seed = random.bits(), .top_k = static_cast<int32_t>(1 + random.below(12))};
    if (i % 2 == 0) r.options.top_p = 0.8f;
    std::vector<int32_t> kept = plain_kept(logits, r.options);
    std::vector<int32_t> drawn;
    for (r.position = 0; r.position < 400; ++r.position) drawn.push_back(*id(sampler, logits, r));
    std::ranges::sort(drawn);
    drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
    std::ranges::sort(kept);
    ASSERT_EQ(drawn, kept) << i;
  }
}

TEST_P(SamplerKernels, PlainOptionsGiveWhatThePlainFunctionGives) {
  RandomFloats random(9);
  Sampler sampler(3001, GetParam());
  for (int i = 0; i < 200; ++i) {
    const std::vector<float> logits = some_logits(random, 3001);
    Request r;
    r.options = {.temperature = i % 4 == 0 ? 0.f : 0.25f * static_cast<float>(i % 9 + 1), .seed = random.bits()};
    r.position = i;
    ASSERT_EQ(id(sampler, logits, r), sample(logits, r.options, i)) << i;
  }
}

// 32-bit halves of seed and position, and counters above 2^32 / 4 ids, reach the noise of every kernel set alike.
TEST_P(SamplerKernels, UseAllBitsOfSeedAndPosition) {
  const std::vector<float> logits(500, 2.f);
  Sampler sampler(500, GetParam());
  Request r;
  r.options.temperature = 1;
  std::vector<int32_t> drawn;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
    for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{1} << 33, (int64_t{1} << 62) + 5}) {
      r.options.seed = seed;
      r.position = position;
      drawn.push_back(*id(sampler, logits, r));
      ASSERT_EQ(drawn.back(), plain_choice(logits, r));
    }
  }
  std::ranges::sort(drawn);
  EXPECT_GT(std::unique(drawn.begin(), drawn.end()) - drawn.begin(), 9);
}

// Large rows reach what small ones don't: more weight than 32 bits hold, selection among many, skipped blocks.
TEST_P(SamplerKernels, AgreeWithTheReferenceOnLargeVocabularies) {
  constexpr int64_t kVocab = 160001;
  RandomFloats random(10);
  Sampler sampler(kVocab, GetParam()), plain(kVocab, KernelSet::kReference);
  for (int i = 0; i < 12; ++i) {
    std::vector<float> logits(kVocab);
    const float spread = i % 4 == 0 ? 0.f : i % 4 == 1 ? 0.1f : 2.f;
    for (float& x : logits) x = (random.next() + random.next()) * spread;
    for (int j = 0; j < 40; ++j) logits[static_cast<size_t>(random.below(kVocab))] += spread * 4;
    Request r;
    r.options = {.temperature = 0.9f, .seed = random.bits(), .top_logprobs = 20};
    if (i % 3 == 0) r.options.top_k = i % 2 == 0 ? 50 : 20000;
    if (i % 3 != 1) r.options.top_p = i % 2 == 0 ? 0.95f : 0.5f;
    r.position = i;
    const auto a = sampler.sample(logits, r.options, {}, r.position, 0);
    const auto b = plain.sample(logits, r.options, {}, r.position, 0);
    ASSERT_EQ(a->id, b->id) << i;
    ASSERT_TRUE(same_bits(a->logprob, b->logprob)) << i;
    ASSERT_TRUE(std::ranges::equal(a->top.entries(), b->top.entries())) << i;
    // Independently of the code: how far down the order the choice may lie.
    const auto above = std::ranges::count_if(logits, [&](float x) { return x > logits[static_cast<size_t>(a->id)]; });
    if (r.options.top_k > 0) {
      EXPECT_LT(above, r.options.top_k);
    }
    if (spread == 0 && r.options.top_k > 0) {
      EXPECT_LT(a->id, r.options.top_k);
    }
  }
}

TEST_P(SamplerKernels, TopPOfAFlatRowIsTheFirstShare) {
  constexpr int64_t kVocab = 100000;
  const std::vector<float> logits(kVocab, -3.f);
  Sampler sampler(kVocab, GetParam());
  int32_t largest = 0;
  Request r;
  r.options = {.temperature = 1, .seed = 3, .top_p = 0.25f};
  for (r.position = 0; r.position < 200; ++r.position) largest = std::max(largest, *id(sampler, logits, r));
  EXPECT_LT(largest, 25000);
  EXPECT_GT(largest, 24000);
}

TEST_P(SamplerKernels, RefuseLogitsThatAreNotFinite) {
  for (const int64_t n : {3, 64, 200}) {
    Sampler sampler(n, GetParam());
    for (int64_t i = 0; i < n; ++i) {
      for (const float bad : {std::nanf(""), -std::nanf(""), kInf}) {
        std::vector<float> logits(static_cast<size_t>(n), 1.f);
        logits[static_cast<size_t>(i)] = bad;
        Request r;
        r.options.temperature = i % 2 == 0 ? 0.f : 1.f;
        ASSERT_FALSE(id(sampler, logits, r)) << n << " " << i;
        r.options.min_tokens = 1;  // masking the id does not hide it
        r.options.stop_tokens = {static_cast<int32_t>(i)};
        ASSERT_FALSE(id(sampler, logits, r)) << n << " " << i;
      }
    }
    EXPECT_FALSE(id(sampler, std::vector<float>(static_cast<size_t>(n), -kInf), {}));
  }
}

TEST_P(SamplerKernels, LogprobsAreOfTheModelWhateverTheOptions) {
  RandomFloats random(11);
  for (const int64_t n : {1, 7, 100, 5000}) {
    Sampler sampler(n, GetParam());
    for (int i = 0; i < 40; ++i) {
      const std::vector<float> logits = some_logits(random, n);
      Request r = some_request(random, n);
      r.options.top_logprobs = static_cast<int32_t>(random.below(21));
      const auto token = sampler.sample(logits, r.options, r.history(), r.position, r.generated(), r.allowed);
      if (!token) continue;
      double z = 0;
      for (const float l : logits) z += std::exp(static_cast<double>(l));
      const auto expected = [&](int32_t id) { return logits[static_cast<size_t>(id)] - std::log(z); };
      EXPECT_NEAR(token->logprob, expected(token->id), 4e-6);
      std::vector<int32_t> ids = plain_kept(logits, {.temperature = 1});
      ids.resize(std::min(ids.size(), static_cast<size_t>(r.options.top_logprobs)));
      ASSERT_EQ(token->top.entries().size(), ids.size());
      for (size_t j = 0; j < ids.size(); ++j) {
        EXPECT_EQ(token->top.entries()[j].first, ids[j]);
        EXPECT_NEAR(token->top.entries()[j].second, expected(ids[j]), 4e-6);
      }
      // The same choice without them.
      r.options.top_logprobs = -1;
      EXPECT_EQ(id(sampler, logits, r), token->id);
    }
  }
}

TEST_P(SamplerKernels, WeightSumsAreThoseOfEveryElement) {
  RandomFloats random(12);
  const SampleKernels kernels = sample_kernels(GetParam());
  for (const int64_t blocks : {1, 3, 1023, 1024, 2500}) {
    std::vector<float> logits(static_cast<size_t>(blocks * kSampleBlock)), maxima(static_cast<size_t>(blocks));
    // All at the top fills the 32-bit lanes; the others exercise skipped blocks.
    for (const float range : {0.f, 10.f, 200.f}) {
      for (float& x : logits) x = 5 - range * static_cast<float>(random.bits() >> 40) * 0x1p-24f;
      logits[0] = 5;
      const LogitRow row{.logits = logits.data(), .full_blocks = blocks, .blocks = blocks};
      ASSERT_TRUE(kernels.block_maxima(row, maxima.data()));
      for (const float least : {-kInf, 2.f}) {
        uint64_t expected = 0;
        for (const float x : logits) {
          if (x >= least) expected += static_cast<uint64_t>(std::ldexp(math::exp((x - 5) / 1.5f), 40));
        }
        ASSERT_EQ(kernels.total_weight(row, maxima.data(), 5, 1.5f, least), expected) << blocks << " " << range;
      }
    }
  }
}

}  // namespace
}  // namespace weir
