#include <algorithm>
#include <charconv>

#include "server/openai.h"
#include "text/tokenizer_unicode.h"

namespace weir::openai {
namespace {

namespace json = boost::json;

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, a space in SentencePiece-style vocabularies

// "<0x0A>" where byte tokens are spelled so.
std::optional<char> byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  if (error != std::errc() || end != piece.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

// What a token adds to a text. Unlike a decoded text's beginning it keeps its leading space.
std::string bytes_of(const Tokenizer& tokenizer, int32_t id) {
  std::string out(tokenizer.token_bytes(id));
  const std::string decoded = tokenizer.decode({&id, 1}, false);
  if (decoded == out) return out;
  if (const std::optional<char> byte = byte_of(out)) return std::string(1, *byte);
  if (decoded.find(kSpaceMark) != std::string::npos) return out;
  std::string spaced;
  for (size_t at = 0; at < out.size();) {
    const bool mark = std::string_view(out).substr(at).starts_with(kSpaceMark);
    spaced += mark ? ' ' : out[at];
    at += mark ? kSpaceMark.size() : 1;
  }
  return spaced;
}

// JSON has no infinity.
double finite_logprob(float value) { return std::max(static_cast<double>(value), -9999.0); }

json::object logprob_entry(const Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string bytes = bytes_of(tokenizer, id);
  json::array numbers;
  for (const char c : bytes) numbers.push_back(static_cast<int64_t>(static_cast<unsigned char>(c)));
  return {{"token", repaired_utf8(bytes)}, {"logprob", finite_logprob(logprob)}, {"bytes", std::move(numbers)}};
}

json::object chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprob> tokens) {
  json::array content;
  for (const TokenLogprob& token : tokens) {
    json::object entry = logprob_entry(tokenizer, token.id, token.logprob);
    json::array top;
    for (const auto& [id, logprob] : token.top) top.push_back(logprob_entry(tokenizer, id, logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json::object completion_logprobs(const Served& served, std::span<const TokenLogprob> tokens) {
  const Tokenizer& tokenizer = served.text->tokenizer();
  json::array words, values, tops, offsets;
  const std::unique_ptr<AnswerStream> text = served.text->plain_answer();
  std::vector<ChatEvent> events;
  int64_t offset = 0;  // in characters, as clients in Python count
  for (const TokenLogprob& token : tokens) {
    offsets.push_back(offset);
    text->push(token.id, events);
    for (const ChatEvent& event : events) {
      offset += std::ranges::count_if(event.text, [](char c) { return (c & 0xC0) != 0x80; });
    }
    events.clear();
    words.emplace_back(repaired_utf8(bytes_of(tokenizer, token.id)));
    values.push_back(finite_logprob(token.logprob));
    json::object top;
    for (const auto& [id, logprob] : token.top) {
      top.emplace(repaired_utf8(bytes_of(tokenizer, id)), finite_logprob(logprob));
    }
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(words)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

json::value logprobs_of(const Job& job, const Answer& answer, const Served& served) {
  if (!job.body.logprobs()) return nullptr;
  if (job.body.endpoint == Endpoint::kChat) return chat_logprobs(served.text->tokenizer(), answer.logprobs());
  return completion_logprobs(served, answer.logprobs());
}

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
  out["logprobs"] = logprobs_of(job, answer, served);
  out["finish_reason"] = parsed.finish_reason;
  return out;
}

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

// Of all answers together; times are those of the slowest.
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
