// How the next token is chosen; the defaults are plain greedy decoding. sampler.h says what each field does and in
// which order.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace weir {

inline constexpr int32_t kMaxTopLogprobs = 20;

struct SamplingOptions {
  float temperature = 0;  // 0: the largest logit
  uint64_t seed = 0;
  int32_t top_k = 0;  // 0: all
  float top_p = 1;
  float min_p = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  std::vector<std::pair<int32_t, float>> logit_bias;  // (id, what is added), each id once
  int64_t min_tokens = 0;                             // stop tokens are not allowed before so many tokens
  std::vector<int32_t> stop_tokens;
  int32_t top_logprobs = -1;  // -1: no logprobs; 0: the chosen token's; n: those of the n likeliest too
};

// Error that names the field, what is expected and what was found. `vocab`: the number of logits.
void validate(const SamplingOptions& options, int64_t vocab);

}  // namespace weir
