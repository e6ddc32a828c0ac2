#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "state/positions.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

void must_step(Engine& engine, const SpanRequest& request) {
  require_done(engine, engine.step({&request, 1}));
  request.sequence->accept(request.sequence->length());
}

int32_t must_sample(Engine& engine, const SamplingOptions& options, int64_t position) {
  const std::optional<int32_t> token = sample(engine.logits(0), options, position);
  if (!token) fail("position ", position, ": a logit is not finite");
  return *token;
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

int64_t prompt_chunk(int64_t position, int64_t rows_left, int64_t limit) {
  if (rows_left <= limit) return rows_left;
  const int64_t end = floor16(position + limit);
  return end > position ? end - position : limit;
}

Completion generate(Engine& engine, std::span<const int32_t> prompt, const GenerateOptions& options) {
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  return generate(engine, *sequence, prompt, options);
}

Completion generate(Engine& engine, Sequence& sequence, std::span<const int32_t> prompt,
                    const GenerateOptions& options) {
  const std::vector<int64_t>& stops = options.stop_tokens ? *options.stop_tokens : engine.model().spec.stop_tokens;
  const auto cancelled = [&] { return options.cancelled && options.cancelled(); };
  Completion result;
  GenerateTimings& timings = result.timings;
  const Clock::time_point start = Clock::now();
  // The last token of the prompt is always computed: its logits are wanted.
  const auto common = std::ranges::mismatch(sequence.tokens(), prompt.first(prompt.size() - 1)).in1;
  timings.cached_n = sequence.rollback(common - sequence.tokens().begin());
  while (sequence.length() < static_cast<int64_t>(prompt.size())) {
    if (cancelled()) {
      result.finish_reason = FinishReason::kCancelled;
      return result;
    }
    const std::span<const int32_t> rest = prompt.subspan(static_cast<size_t>(sequence.length()));
    const int64_t rows =
        prompt_chunk(sequence.length(), static_cast<int64_t>(rest.size()), engine.options().max_batch_rows);
    const bool last = rows == static_cast<int64_t>(rest.size());
    must_step(engine,
              {&sequence, rest.first(static_cast<size_t>(rows)), last ? LogitsWanted::kLast : LogitsWanted::kNone});
    ++timings.prompt_steps;
  }
  const Clock::time_point prompt_end = Clock::now();
  const StepCounters before = engine.device().counters();
  while (static_cast<int64_t>(result.tokens.size()) < options.max_tokens) {
    const int32_t token = must_sample(engine, options.sampling, sequence.length());
    if (!options.ignore_eos && std::ranges::find(stops, token) != stops.end()) {
      result.finish_reason = FinishReason::kStop;
      result.stop_token = token;
      ++timings.predicted_n;
      break;
    }
    result.tokens.push_back(token);
    ++timings.predicted_n;
    if (options.on_token) options.on_token(token);
    if (static_cast<int64_t>(result.tokens.size()) == options.max_tokens) break;
    if (cancelled()) {
      result.finish_reason = FinishReason::kCancelled;
      break;
    }
    must_step(engine, {&sequence, {&token, 1}, LogitsWanted::kLast});
    ++timings.predicted_steps;
  }
  const Clock::time_point end = Clock::now();
  const StepCounters& after = engine.device().counters();
  timings.prompt_n = static_cast<int64_t>(prompt.size()) - timings.cached_n;
  timings.prompt_ms = milliseconds(start, prompt_end);
  timings.predicted_ms = milliseconds(prompt_end, end);
  timings.predicted_weight_bytes = after.weight_bytes_read - before.weight_bytes_read;
  timings.predicted_state_bytes =
      after.state_bytes_read + after.state_bytes_written - before.state_bytes_read - before.state_bytes_written;
  return result;
}

}  // namespace weir
