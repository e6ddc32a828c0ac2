#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "base/error.h"
#include "engine/sampler_test_reference.h"

namespace {
std::atomic<int64_t> allocations = 0;
}
// Out of line: GCC would otherwise see free() meet the new of its own headers.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace weir {
namespace {

// --- the function of temperature and seed ---------------------------------------------------------------------------

TEST(PlainSample, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 2, 3}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-0.f, 0.f}, {}, 0), 0);
  EXPECT_EQ(sample(std::vector<float>{-5}, {}, 0), 0);
}

TEST(PlainSample, RefusesLogitsThatAreNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(sample(std::vector<float>{1, std::nanf(""), 2}, {}, 0));
  EXPECT_FALSE(sample(std::vector<float>{1, inf}, {}, 0));
  EXPECT_FALSE(sample(std::vector<float>{-inf, -inf}, {}, 0));
  EXPECT_EQ(sample(std::vector<float>{-inf, -3}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-inf, -3}, {.temperature = 1, .seed = 1}, 0), 1);
}

TEST(PlainSample, FollowsTheSoftmax) {
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

TEST(PlainSample, SkippingHopelessIdsChangesNothing) {
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

TEST(PlainSample, TinyTemperaturesAreGreedy) {
  const std::vector<float> logits = {1, 3, 2, 2.9f};
  for (float temperature : {1e-20f, 1e-38f, 1e-45f}) EXPECT_EQ(sample(logits, {temperature, 5}, 7), 1) << temperature;
}

TEST(PlainSample, RefusesOptionsThatItCannotHonour) {
  const std::vector<float> logits = {1, 2};
  for (const SamplingOptions& options : {SamplingOptions{.top_k = 1},
                                         {.top_p = 0.5f},
                                         {.min_p = 0.5f},
                                         {.presence_penalty = 1},
                                         {.frequency_penalty = 1},
                                         {.repetition_penalty = 2},
                                         {.logit_bias = {{0, 1.f}}},
                                         {.min_tokens = 1},
                                         {.top_logprobs = 0}}) {
    EXPECT_THROW(sample(logits, options, 0), Error);
  }
}

// --- what the options mean
// --------------------------------------------------------------------------------------------

class SamplerOptionsTest : public testing::Test {
 protected:
  // One of {0, 1, 2, ...} by the largest adjusted logit.
  int32_t greedy(const std::vector<float>& logits, const SamplingOptions& options, const TokenHistory& history = {},
                 int64_t generated = 0) {
    Sampler sampler(static_cast<int64_t>(logits.size()));
    const auto token = sampler.sample(logits, options, history, 0, generated);
    return token ? token->id : -1;
  }
};

TEST_F(SamplerOptionsTest, RepetitionCountsPromptAndOutputFrequencyAndPresenceOnlyTheOutput) {
  TokenHistory prompt_only;
  prompt_only.add_prompt(std::vector<int32_t>{0, 0, 0});
  EXPECT_EQ(greedy({2, 1.5f}, {.frequency_penalty = 2}, prompt_only), 0);
  EXPECT_EQ(greedy({2, 1.5f}, {.presence_penalty = 2}, prompt_only), 0);
  EXPECT_EQ(greedy({2, 1.5f}, {.repetition_penalty = 1.5f}, prompt_only), 1);     // 2 / 1.5 = 1.33
  EXPECT_EQ(greedy({2, 1.5f}, {.repetition_penalty = 1.25f}, prompt_only), 0);    // 1.6
  EXPECT_EQ(greedy({-2, -2.2f}, {.repetition_penalty = 1.25f}, prompt_only), 1);  // negative: -2 x 1.25
  TokenHistory output;
  output.add(0);
  EXPECT_EQ(greedy({2, 1.5f}, {.repetition_penalty = 1.5f}, output), 1);
  EXPECT_EQ(greedy({2, 1.5f}, {.presence_penalty = 0.6f}, output), 1);
  EXPECT_EQ(greedy({2, 1.5f}, {.frequency_penalty = 0.3f}, output), 0);
  output.add(0);
  EXPECT_EQ(greedy({2, 1.5f}, {.frequency_penalty = 0.3f}, output), 1);  // twice
  EXPECT_EQ(greedy({2, 1.5f}, {.presence_penalty = 0.3f}, output), 0);   // once for all
  EXPECT_EQ(greedy({2, 1.5f}, {.presence_penalty = -1}, output), 0);
  output.remove_last();
  EXPECT_EQ(greedy({2, 1.5f}, {.frequency_penalty = 0.3f}, output), 0);
}

TEST_F(SamplerOptionsTest, BiasComesBeforeThePenalties) {
  TokenHistory output;
  output.add(0);
  // (1 + 3) / 2 = 2; the other way round 1 / 2 + 3 = 3.5
  EXPECT_EQ(greedy({1, 3}, {.repetition_penalty = 2, .logit_bias = {{0, 3.f}}}, output), 1);
  EXPECT_EQ(greedy({1, 1.9f}, {.repetition_penalty = 2, .logit_bias = {{0, 3.f}}}, output), 0);
}

TEST_F(SamplerOptionsTest, StopTokensWaitForMinTokens) {
  const SamplingOptions options = {.min_tokens = 3, .stop_tokens = {1}};
  EXPECT_EQ(greedy({1, 5}, options, {}, 2), 0);
  EXPECT_EQ(greedy({1, 5}, options, {}, 3), 1);
  EXPECT_EQ(greedy({1, 5}, {.logit_bias = {{1, 100.f}}, .min_tokens = 3, .stop_tokens = {1}}, {}, 0), 0);
  EXPECT_EQ(greedy({1, 5}, {.min_tokens = 3, .stop_tokens = {0, 1}}, {}, 0), -1);  // nothing is allowed
}

TEST_F(SamplerOptionsTest, OverflowsAreHeldAtTheLargestNumber) {
  TokenHistory output;
  output.add(1);
  EXPECT_EQ(greedy({3e38f, 3e38f}, {.repetition_penalty = 0.1f}, output), 1);
  Sampler sampler(2);
  const auto token =
      sampler.sample(std::vector<float>{0, 3e38f}, {.temperature = 1, .repetition_penalty = 1e-20f}, output, 0, 1);
  ASSERT_TRUE(token);
  EXPECT_EQ(token->id, 1);
}

TEST_F(SamplerOptionsTest, TheIdThatCrossesTopPIsKept) {
  // Probabilities 0.5, 0.25, 0.25: exact weights.
  const std::vector<float> logits = {std::log(2.f), 0, 0};
  const auto kinds = [&](float top_p) {
    Sampler sampler(3);
    std::vector<bool> seen(3);
    for (int64_t i = 0; i < 300; ++i) {
      const SamplingOptions options = {.temperature = 1, .seed = 1, .top_p = top_p};
      seen[static_cast<size_t>(sampler.sample(logits, options, {}, i, 0)->id)] = true;
    }
    return std::ranges::count(seen, true);
  };
  EXPECT_EQ(kinds(0.4f), 1);
  EXPECT_EQ(kinds(0.49f), 1);
  EXPECT_EQ(kinds(0.55f), 2);
  EXPECT_EQ(kinds(0.7f), 2);
  EXPECT_EQ(kinds(0.8f), 3);
  EXPECT_EQ(kinds(1.f), 3);
}

TEST_F(SamplerOptionsTest, MinPIsTakenBeforeTopP) {
  // Probabilities 0.4, 0.3 and thirty of 0.01. min_p 0.5 leaves 0.4 and 0.3, of which 0.57 and 0.43: top_p 0.55 keeps
  // one. The other order would keep two.
  std::vector<float> logits(32, std::log(0.01f));
  logits[3] = std::log(0.4f);
  logits[9] = std::log(0.3f);
  Sampler sampler(32);
  for (int64_t i = 0; i < 100; ++i) {
    const SamplingOptions options = {.temperature = 1, .seed = 1, .top_p = 0.55f, .min_p = 0.5f};
    EXPECT_EQ(sampler.sample(logits, options, {}, i, 0)->id, 3);
  }
}

// --- statistics and purity ------------------------------------------------------------------------------------------

// Pearson's statistic of draws at successive positions against the filtered softmax in double; none may fall outside.
void expect_distribution(const std::vector<float>& logits, const Request& request) {
  constexpr int kDraws = 60000;
  const std::vector<float> l = plain_adjusted(logits, request);
  const std::vector<int32_t> kept = plain_kept(l, request.options);
  std::vector<double> expected(l.size());
  double z = 0;
  for (const int32_t id : kept) {
    const auto i = static_cast<size_t>(id);
    z += expected[i] = std::exp(static_cast<double>(l[i]) / static_cast<double>(request.options.temperature));
  }
  std::vector<int> counts(l.size());
  Sampler sampler(static_cast<int64_t>(l.size()));
  const TokenHistory history = request.history();
  for (int i = 0; i < kDraws; ++i) {
    const auto token = sampler.sample(logits, request.options, history, i, request.generated(), request.allowed);
    ++counts[static_cast<size_t>(token->id)];
  }
  double chi2 = 0;
  int cells = 0, rest_count = 0;
  double rest = 0;  // ids expected fewer than 10 times, together
  for (size_t i = 0; i < l.size(); ++i) {
    const double n = expected[i] / z * kDraws;
    if (n == 0) {
      EXPECT_EQ(counts[i], 0) << i;
    } else if (n < 10) {
      rest += n;
      rest_count += counts[i];
    } else {
      chi2 += (counts[i] - n) * (counts[i] - n) / n;
      ++cells;
    }
  }
  if (rest > 0) {
    chi2 += (rest_count - rest) * (rest_count - rest) / rest;
    ++cells;
  }
  EXPECT_GT(cells, 3);
  const double freedom = cells - 1;
  // Mean and variance of chi-square are f and 2 f. A fixed seed: this passes always or never.
  EXPECT_LT(chi2, freedom + 4 * std::sqrt(2 * freedom));
}

TEST(SamplerStatistics, FrequenciesAreThoseOfTheFilteredSoftmax) {
  RandomFloats random(13);
  std::vector<float> logits(150);
  for (float& x : logits) x = random.next() * 1.5f;
  Request r;
  r.options = {.temperature = 1, .seed = 11};
  expect_distribution(logits, r);
  r.options = {.temperature = 0.6f, .seed = 12, .top_k = 12};
  expect_distribution(logits, r);
  r.options = {.temperature = 1.4f, .seed = 13, .top_p = 0.7f};
  expect_distribution(logits, r);
  r.options = {.temperature = 1, .seed = 14, .min_p = 0.2f};
  expect_distribution(logits, r);
  r.options = {.temperature = 0.8f,
               .seed = 15,
               .top_k = 40,
               .top_p = 0.8f,
               .min_p = 0.02f,
               .presence_penalty = 0.5f,
               .frequency_penalty = 0.2f,
               .repetition_penalty = 1.3f,
               .logit_bias = {{4, 2.f}, {90, -5.f}},
               .min_tokens = 10,
               .stop_tokens = {7}};
  r.prompt = {1, 2, 3, 50, 51};
  r.output = {1, 1, 9, 50};
  expect_distribution(logits, r);
}

TEST(SamplerPurity, AChoiceDoesNotDependOnEarlierCalls) {
  RandomFloats random(14);
  constexpr int64_t kVocab = 1111;
  std::vector<std::vector<float>> logits;
  std::vector<Request> requests;
  for (int i = 0; i < 60; ++i) {
    logits.push_back(some_logits(random, kVocab));
    requests.push_back(some_request(random, kVocab));
    requests.back().options.top_logprobs = static_cast<int32_t>(random.below(22)) - 1;
  }
  const auto run = [&](Sampler& sampler, size_t i) {
    const Request& r = requests[i];
    return sampler.sample(logits[i], r.options, r.history(), r.position, r.generated(), r.allowed);
  };
  Sampler shared(kVocab);
  for (int call = 0; call < 400; ++call) {
    const auto i = static_cast<size_t>(random.below(60));
    Sampler fresh(kVocab);
    const auto a = run(shared, i), b = run(fresh, i);
    ASSERT_EQ(a.has_value(), b.has_value());
    if (!a) continue;
    ASSERT_EQ(a->id, b->id);
    ASSERT_TRUE(same_bits(a->logprob, b->logprob));
    ASSERT_TRUE(std::ranges::equal(a->top.entries(), b->top.entries()));
  }
}

TEST(SamplerPurity, AHistoryCutBackSamplesAsOneBuiltAnew) {
  RandomFloats random(15);
  constexpr int64_t kVocab = 200;
  Sampler sampler(kVocab);
  TokenHistory history;
  std::vector<int32_t> tokens;
  for (int round = 0; round < 100; ++round) {
    for (int64_t n = random.below(50); n > 0; --n) {
      tokens.push_back(static_cast<int32_t>(random.below(kVocab)));
      history.add(tokens.back());
    }
    tokens.resize(static_cast<size_t>(random.below(static_cast<int64_t>(tokens.size()) + 1)));
    history.truncate(static_cast<int64_t>(tokens.size()));
    TokenHistory anew;
    for (const int32_t token : tokens) anew.add(token);
    const std::vector<float> logits = some_logits(random, kVocab);
    const SamplingOptions options = {
        .temperature = 1, .presence_penalty = 1, .frequency_penalty = 0.5f, .repetition_penalty = 1.2f};
    ASSERT_EQ(sampler.sample(logits, options, history, round, 0)->id,
              sampler.sample(logits, options, anew, round, 0)->id);
  }
}

TEST(SamplerPurity, SamplingDoesNotAllocate) {
  RandomFloats random(16);
  Sampler sampler(5000);
  const std::vector<float> logits = some_logits(random, 5000);
  Request r = some_request(random, 5000);
  r.options = {.temperature = 1,
               .top_k = 300,
               .top_p = 0.9f,
               .min_p = 0.001f,
               .presence_penalty = 1,
               .logit_bias = {{1, 1.f}},
               .min_tokens = 9,
               .stop_tokens = {1},
               .top_logprobs = 20};
  const TokenHistory history = r.history();
  const int64_t before = allocations;
  for (int64_t i = 0; i < 10; ++i) EXPECT_TRUE(sampler.sample(logits, r.options, history, i, 0));
  EXPECT_EQ(allocations, before);
  EXPECT_GT(before, 0);
}

TEST(Sampler, RefusesVocabulariesItsSumsCannotHold) {
  EXPECT_THROW(Sampler(0), Error);
  EXPECT_THROW(Sampler((int64_t{1} << 22) + 1), Error);
}

}  // namespace
}  // namespace weir
