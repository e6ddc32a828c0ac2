#include "server/openai_logprobs.h"

#include <algorithm>

#include "text/token_bytes.h"
#include "text/tokenizer_unicode.h"

namespace weir::openai {
namespace {

namespace json = boost::json;

// JSON has no infinity.
double finite_logprob(float value) { return std::max(static_cast<double>(value), -9999.0); }

json::object logprob_entry(const Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string bytes = bytes_in_text(tokenizer, id);
  json::array numbers;
  for (const char c : bytes) numbers.push_back(static_cast<int64_t>(static_cast<unsigned char>(c)));
  return {{"token", repaired_utf8(bytes)}, {"logprob", finite_logprob(logprob)}, {"bytes", std::move(numbers)}};
}

}  // namespace

LogprobList::LogprobList(const Job& job, const Served& served)
    : served_(served), wanted_(job.body.logprobs()), is_chat_(job.body.endpoint == Endpoint::kChat) {
  if (wanted_ && !is_chat_) text_ = served.text->plain_answer();
}

json::value LogprobList::next(const Answer& answer) {
  if (!wanted_) return nullptr;
  const std::span<const TokenLogprob> tokens = std::span(answer.logprobs()).subspan(taken_);
  taken_ = answer.logprobs().size();
  return is_chat_ ? chat(tokens) : completion(tokens);
}

json::array logprob_entries(const Tokenizer& tokenizer, std::span<const TokenLogprob> tokens) {
  json::array content;
  for (const TokenLogprob& token : tokens) {
    json::object entry = logprob_entry(tokenizer, token.id, token.logprob);
    json::array top;
    for (const auto& [id, logprob] : token.top) top.push_back(logprob_entry(tokenizer, id, logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return content;
}

json::object LogprobList::chat(std::span<const TokenLogprob> tokens) const {
  return {{"content", logprob_entries(served_.text->tokenizer(), tokens)}, {"refusal", nullptr}};
}

json::object LogprobList::completion(std::span<const TokenLogprob> tokens) {
  const Tokenizer& tokenizer = served_.text->tokenizer();
  json::array words, values, tops, offsets;
  std::vector<ChatEvent> events;
  for (const TokenLogprob& token : tokens) {
    offsets.push_back(offset_);
    text_->push(token.id, events);
    for (const ChatEvent& event : events) {
      offset_ += std::ranges::count_if(event.text, [](char c) { return (c & 0xC0) != 0x80; });
    }
    events.clear();
    words.emplace_back(repaired_utf8(bytes_in_text(tokenizer, token.id)));
    values.push_back(finite_logprob(token.logprob));
    json::object top;
    for (const auto& [id, logprob] : token.top) {
      top.emplace(repaired_utf8(bytes_in_text(tokenizer, id)), finite_logprob(logprob));
    }
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(words)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace weir::openai
