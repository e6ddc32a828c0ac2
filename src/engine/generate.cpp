#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

void must_step(Engine& engine, const SpanRequest& request) {
  if (engine.step({&request, 1}) != StepStatus::kDone) fail("state: the pages or anchors of this engine are used up");
  request.sequence->accept(request.sequence->length());
}

int32_t must_sample(Engine& engine, const SamplingOptions& options, int64_t position) {
  const std::optional<int32_t> token = sample(engine.logits(0), options, position);
  if (!token) fail("position ", position, ": a logit is not finite");
  return *token;
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) { return reason == FinishReason::kStop ? "stop" : "length"; }

int64_t prompt_chunk(int64_t position, int64_t rows_left, int64_t limit) {
  if (rows_left <= limit) return rows_left;
  const int64_t end = (position + limit) / kPagePositions * kPagePositions;
  return end > position ? end - position : limit;
}

Completion generate(Engine& engine, std::span<const int32_t> prompt, const GenerateOptions& options) {
  const std::vector<int64_t>& stops = engine.model().spec.stop_tokens;
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  Completion result;
  const Clock::time_point start = Clock::now();
  while (sequence->length() < static_cast<int64_t>(prompt.size())) {
    const std::span<const int32_t> rest = prompt.subspan(static_cast<size_t>(sequence->length()));
    const int64_t rows =
        prompt_chunk(sequence->length(), static_cast<int64_t>(rest.size()), engine.options().max_batch_rows);
    const bool last = rows == static_cast<int64_t>(rest.size());
    must_step(engine, {sequence.get(), rest.first(static_cast<size_t>(rows)),
                       last ? LogitsWanted::kLast : LogitsWanted::kNone});
    ++result.timings.prompt_steps;
  }
  const Clock::time_point prompt_end = Clock::now();
  const int64_t bytes_before = engine.device().counters().weight_bytes_read;
  while (static_cast<int64_t>(result.tokens.size()) < options.max_tokens) {
    const int32_t token = must_sample(engine, options.sampling, sequence->length());
    if (!options.ignore_eos && std::ranges::find(stops, token) != stops.end()) {
      result.finish_reason = FinishReason::kStop;
      break;
    }
    result.tokens.push_back(token);
    if (options.on_token) options.on_token(token);
    if (static_cast<int64_t>(result.tokens.size()) == options.max_tokens) break;
    must_step(engine, {sequence.get(), {&token, 1}, LogitsWanted::kLast});
    ++result.timings.predicted_n;
  }
  const Clock::time_point end = Clock::now();
  result.timings.prompt_n = static_cast<int64_t>(prompt.size());
  result.timings.prompt_ms = milliseconds(start, prompt_end);
  result.timings.predicted_ms = milliseconds(prompt_end, end);
  result.timings.predicted_weight_bytes = engine.device().counters().weight_bytes_read - bytes_before;
  return result;
}

}  // namespace weir
