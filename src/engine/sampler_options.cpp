#include "engine/sampler_options.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace weir {
namespace {

constexpr size_t kMaxBiases = 1024;

// The condition is false for NaN: every comparison with it is.
template <class T>
void check(bool good, std::string_view field, std::string_view expected, T found) {
  if (!good) fail("sampling: ", field, ": expected ", expected, ", found ", found);
}

void check_id(int32_t id, int64_t vocab, std::string_view field) {
  if (id < 0 || id >= vocab) {
    fail("sampling: ", field, ": expected token ids from 0 to ", vocab - 1, ", found ", id);
  }
}

void check_logit_bias(const SamplingOptions& options, int64_t vocab) {
  const auto& biases = options.logit_bias;
  check(biases.size() <= kMaxBiases, "logit_bias", "at most 1024 entries", biases.size());
  std::vector<int32_t> ids;
  ids.reserve(biases.size());
  for (const auto& [id, bias] : biases) {
    check_id(id, vocab, "logit_bias");
    if (!(bias >= -100 && bias <= 100)) {
      fail("sampling: logit_bias of token ", id, ": expected a number from -100 to 100, found ", bias);
    }
    ids.push_back(id);
  }
  std::ranges::sort(ids);
  const auto twice = std::ranges::adjacent_find(ids);
  if (twice != ids.end()) fail("sampling: logit_bias: expected each token id once, found ", *twice, " twice");
}

}  // namespace

void validate(const SamplingOptions& options, int64_t vocab) {
  const float temperature = options.temperature, top_p = options.top_p, min_p = options.min_p;
  const float presence = options.presence_penalty, frequency = options.frequency_penalty;
  const float repetition = options.repetition_penalty;
  check(temperature >= 0 && temperature <= 100, "temperature", "a number from 0 to 100", temperature);
  check(options.top_k >= 0, "top_k", "0 (all) or a positive number", options.top_k);
  check(top_p > 0 && top_p <= 1, "top_p", "a number above 0 and at most 1", top_p);
  check(min_p >= 0 && min_p <= 1, "min_p", "a number from 0 to 1", min_p);
  check(presence >= -2 && presence <= 2, "presence_penalty", "a number from -2 to 2", presence);
  check(frequency >= -2 && frequency <= 2, "frequency_penalty", "a number from -2 to 2", frequency);
  check(repetition > 0 && repetition <= 10, "repetition_penalty", "a number above 0 and at most 10", repetition);
  check_logit_bias(options, vocab);
  check(options.min_tokens >= 0, "min_tokens", "0 or a positive number", options.min_tokens);
  for (const int32_t id : options.stop_tokens) check_id(id, vocab, "stop_tokens");
  check(options.top_logprobs >= -1 && options.top_logprobs <= kMaxTopLogprobs, "top_logprobs",
        "a number from 0 to 20, or -1 for none", options.top_logprobs);
}

}  // namespace weir
