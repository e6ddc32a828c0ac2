#include "server/openai_usage.h"

#include <algorithm>

namespace weir::openai {

namespace json = boost::json;

// The answers to one prompt share it, so it counts once, and as cached what the first of them did not compute.
json::object usage_of(const Job& job, std::span<const Answer> answers) {
  int64_t prompt = 0, cached = 0, completion = 0, reasoning = 0;
  const auto n = static_cast<size_t>(job.body.n);
  for (size_t i = 0; i < job.prompts.size(); ++i) {
    prompt += job.prompts[i].tokens;
    int64_t least = job.prompts[i].tokens;
    for (size_t k = 0; k < n; ++k) least = std::min(least, answers[i * n + k].usage().cached_tokens);
    cached += least;
  }
  for (const Answer& answer : answers) {
    completion += answer.completion_tokens();
    reasoning += answer.reasoning_tokens();
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

json::object timings_of(std::span<const Answer> answers) {
  int64_t computed = 0, cached = 0, predicted = 0;
  double queue = 0, prompt = 0, decode = 0;
  for (const Answer& answer : answers) {
    const RequestUsage& usage = answer.usage();
    computed += usage.prompt_tokens - usage.cached_tokens;
    cached += usage.cached_tokens;
    predicted += usage.generated_tokens;
    queue = std::max(queue, usage.queue_ms);
    prompt = std::max(prompt, usage.prompt_ms);
    decode = std::max(decode, usage.decode_ms);
  }
  return {{"queue_ms", queue},
          {"prompt_n", computed},
          {"prompt_ms", prompt},
          {"cached_n", cached},
          {"cache_reason", hit_reason_name(answers.front().usage().hit)},
          {"predicted_n", predicted},
          {"predicted_ms", decode}};
}

}  // namespace weir::openai
