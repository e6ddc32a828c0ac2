#include "engine/sampler_options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace weir {
namespace {

constexpr int64_t kVocab = 100;

std::string refusal(const SamplingOptions& options) {
  try {
    validate(options, kVocab);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SamplingOptions, DefaultsAndEndsOfRangesAreAccepted) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.temperature = 100,
                     .top_k = 1 << 30,
                     .min_p = 1,
                     .presence_penalty = 2,
                     .frequency_penalty = -2,
                     .repetition_penalty = 10,
                     .logit_bias = {{99, -100.f}, {0, 100.f}},
                     .min_tokens = 1 << 20,
                     .stop_tokens = {0, 99},
                     .top_logprobs = 20}),
            "");
  EXPECT_EQ(refusal({.temperature = 1e-45f, .top_p = 1e-45f, .repetition_penalty = 1e-45f, .top_logprobs = 0}), "");
}

TEST(SamplingOptions, RefusalsNameFieldExpectationAndFinding) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {-0.5f, 100.5f, nan, inf}) {
    EXPECT_NE(refusal({.temperature = bad}).find("temperature: expected a number from 0 to 100, found "),
              std::string::npos);
  }
  EXPECT_EQ(refusal({.temperature = -0.5f}), "sampling: temperature: expected a number from 0 to 100, found -0.5");
  EXPECT_EQ(refusal({.top_k = -1}), "sampling: top_k: expected 0 (all) or a positive number, found -1");
  for (const float bad : {0.f, -0.1f, 1.5f, nan}) {
    EXPECT_NE(refusal({.top_p = bad}).find("top_p: expected a number above 0 and at most 1, found "),
              std::string::npos);
  }
  for (const float bad : {-0.1f, 1.5f, nan}) {
    EXPECT_NE(refusal({.min_p = bad}).find("min_p: expected a number from 0 to 1, found "), std::string::npos);
  }
  for (const float bad : {-2.5f, 2.5f, nan}) {
    EXPECT_NE(refusal({.presence_penalty = bad}).find("presence_penalty: expected a number from -2 to 2"),
              std::string::npos);
    EXPECT_NE(refusal({.frequency_penalty = bad}).find("frequency_penalty: expected a number from -2 to 2"),
              std::string::npos);
  }
  for (const float bad : {0.f, -1.f, 10.5f, nan}) {
    EXPECT_NE(refusal({.repetition_penalty = bad}).find("repetition_penalty: expected a number above 0 and at most 10"),
              std::string::npos);
  }
  EXPECT_EQ(refusal({.min_tokens = -1}), "sampling: min_tokens: expected 0 or a positive number, found -1");
  EXPECT_EQ(refusal({.stop_tokens = {3, 100}}), "sampling: stop_tokens: expected token ids from 0 to 99, found 100");
  for (const int32_t bad : {-2, 21}) {
    EXPECT_NE(refusal({.top_logprobs = bad}).find("top_logprobs: expected a number from 0 to 20, or -1 for none"),
              std::string::npos);
  }
}

TEST(SamplingOptions, LogitBiasIsCheckedEntryByEntry) {
  EXPECT_EQ(refusal({.logit_bias = {{100, 1.f}}}), "sampling: logit_bias: expected token ids from 0 to 99, found 100");
  EXPECT_EQ(refusal({.logit_bias = {{-1, 1.f}}}), "sampling: logit_bias: expected token ids from 0 to 99, found -1");
  EXPECT_EQ(refusal({.logit_bias = {{5, 100.5f}}}),
            "sampling: logit_bias of token 5: expected a number from -100 to 100, found 100.5");
  EXPECT_NE(refusal({.logit_bias = {{5, std::nanf("")}}}), "");
  EXPECT_EQ(refusal({.logit_bias = {{5, 1.f}, {6, 1.f}, {5, 2.f}}}),
            "sampling: logit_bias: expected each token id once, found 5 twice");
  SamplingOptions many;
  many.logit_bias.assign(1025, {1, 0.f});
  EXPECT_EQ(refusal(many), "sampling: logit_bias: expected at most 1024 entries, found 1025");
}

}  // namespace
}  // namespace weir
