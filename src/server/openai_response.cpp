#include "server/openai.h"
#include "server/openai_logprobs.h"
#include "server/openai_usage.h"

namespace weir::openai {
namespace {

namespace json = boost::json;

json::object message_of(const ParsedMessage& parsed) {
  json::object out{{"role", "assistant"}, {"content", parsed.content}, {"refusal", nullptr}};
  if (!parsed.reasoning.empty()) out["reasoning_content"] = parsed.reasoning;
  if (parsed.tool_calls.empty()) return out;
  json::array calls;
  for (const ParsedToolCall& call : parsed.tool_calls) {
    calls.push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  out["tool_calls"] = std::move(calls);
  if (parsed.content.empty()) out["content"] = nullptr;
  return out;
}

json::object choice_of(const Job& job, size_t index, const Answer& answer, const Served& served) {
  const ParsedMessage& parsed = answer.message();
  json::object out{{"index", static_cast<int64_t>(index)}};
  if (job.body.endpoint == Endpoint::kChat) {
    out["message"] = message_of(parsed);
  } else {
    out["text"] = job.prompts[index / static_cast<size_t>(job.body.n)].text + parsed.content;
  }
  out["logprobs"] = LogprobList(job, served).next(answer);
  out["finish_reason"] = parsed.finish_reason;
  return out;
}

}  // namespace

json::object response(const Job& job, std::span<const Answer> answers, const Served& served, const ResponseHead& head) {
  json::array choices;
  for (size_t i = 0; i < answers.size(); ++i) choices.push_back(choice_of(job, i, answers[i], served));
  return {{"id", head.id},
          {"object", job.body.endpoint == Endpoint::kChat ? "chat.completion" : "text_completion"},
          {"created", head.created},
          {"model", job.body.model.empty() ? served.name : job.body.model},
          {"system_fingerprint", served.fingerprint},
          {"choices", std::move(choices)},
          {"usage", usage_of(job, answers)},
          {"timings", timings_of(answers)}};
}

}  // namespace weir::openai
