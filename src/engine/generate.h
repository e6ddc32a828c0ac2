// One completion of one sequence: prompt in chunks, then token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"

namespace weir {

enum class FinishReason { kStop, kLength };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length"

struct GenerateOptions {
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  bool ignore_eos = false;
  std::function<void(int32_t token)> on_token;  // may be empty
};

struct GenerateTimings {
  int64_t prompt_n = 0, predicted_n = 0;
  double prompt_ms = 0, predicted_ms = 0;
  int64_t prompt_steps = 0;
  int64_t predicted_weight_bytes = 0;  // weight bytes that the token-by-token steps read
};

struct Completion {
  std::vector<int32_t> tokens;  // without the stop token
  FinishReason finish_reason = FinishReason::kLength;
  GenerateTimings timings;
};

// `prompt` is not empty and its ids are valid; the engine's pools hold prompt + max_tokens. Error when a logit is not
// finite.
Completion generate(Engine& engine, std::span<const int32_t> prompt, const GenerateOptions& options);

// Rows of the next chunk of a prompt: at most `limit`, ending at a multiple of 16 unless it is the last or that is
// impossible.
int64_t prompt_chunk(int64_t position, int64_t rows_left, int64_t limit);

}  // namespace weir
