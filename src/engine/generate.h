// One completion of one sequence: prompt in chunks, then token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"

namespace weir {

enum class FinishReason { kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled", "error"

struct GenerateOptions {
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  bool ignore_eos = false;
  std::optional<std::vector<int64_t>> stop_tokens;  // instead of the model's own
  std::function<void(int32_t token)> on_token;      // may be empty
  std::function<bool()> cancelled;                  // asked before every step; may be empty
};

struct GenerateTimings {
  int64_t prompt_n = 0;         // rows of the prompt that were computed
  int64_t predicted_n = 0;      // tokens generated, with the stop token
  int64_t predicted_steps = 0;  // steps after the prompt: the first token needs none of its own
  int64_t cached_n = 0;         // rows of the prompt that the sequence had already
  double prompt_ms = 0, predicted_ms = 0;
  int64_t prompt_steps = 0;
  int64_t predicted_weight_bytes = 0;  // weight bytes that the token-by-token steps read
  int64_t predicted_state_bytes = 0;   // pages and anchors that they read and wrote
};

struct Completion {
  std::vector<int32_t> tokens;  // without the stop token
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<int32_t> stop_token;  // that ended it
  GenerateTimings timings;
};

// `prompt` is not empty and its ids are valid; the engine's pools hold prompt + max_tokens. Error when a logit is not
// finite.
Completion generate(Engine& engine, std::span<const int32_t> prompt, const GenerateOptions& options);

// The same on a sequence that may have rows already: those that `prompt` begins with are kept, the others rolled back.
// The result does not depend on what the sequence held. Afterwards it holds prompt and answer but for the last token.
Completion generate(Engine& engine, Sequence& sequence, std::span<const int32_t> prompt,
                    const GenerateOptions& options);

// Rows of the next chunk of a prompt: at most `limit`, ending at a multiple of 16 unless it is the last or that is
// impossible.
int64_t prompt_chunk(int64_t position, int64_t rows_left, int64_t limit);

}  // namespace weir
