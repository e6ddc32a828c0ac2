#include "server/answer.h"

namespace weir {

bool Answer::push(const SampledToken& token, std::vector<ChatEvent>& events) {
  if (stopped()) return false;
  ++tokens_;
  if (options_.logprobs) {
    const std::span<const std::pair<int32_t, float>> top = token.top.entries();
    logprobs_.push_back({token.id, token.logprob, {top.begin(), top.end()}});
  }
  stream_->push(token.id, parsed_);
  pass_on(events);
  return !stopped();
}

void Answer::end(const RequestEnd& end, std::vector<ChatEvent>& events) {
  usage_ = end.usage;
  if (!stopped()) {
    // The parser ends by the token that ended the answer; without it, it was cut.
    if (end.stop_token >= 0) stream_->push(end.stop_token, parsed_);
    tokens_ = end.usage.generated_tokens;
    stream_->finish(parsed_);
    pass_on(events);
    if (!stopped()) content(stop_.finish(), events);
  }
  message_.tool_calls = stream_->message().tool_calls;
  if (!stopped() && end.reason == FinishReason::kLength) {
    message_.finish_reason = "length";
  } else {
    message_.finish_reason = message_.tool_calls.empty() || stopped() ? "stop" : "tool_calls";
  }
  events.push_back({.kind = ChatEvent::Kind::kEnd, .text = message_.finish_reason});
}

void Answer::content(std::string text, std::vector<ChatEvent>& events) {
  if (text.empty()) return;
  message_.content += text;
  events.push_back({.kind = ChatEvent::Kind::kContent, .text = std::move(text)});
}

void Answer::pass_on(std::vector<ChatEvent>& events) {
  for (ChatEvent& event : parsed_) {
    if (stopped()) break;
    switch (event.kind) {
      case ChatEvent::Kind::kEnd:
        break;  // of the parser; ours comes last
      case ChatEvent::Kind::kContent:
        content(tokens_ < options_.min_tokens ? std::move(event.text) : stop_.push(event.text), events);
        break;
      default:
        content(stop_.finish(), events);
        if (event.kind == ChatEvent::Kind::kReasoning) {
          message_.reasoning += event.text;
          reasoning_tokens_ = tokens_;
        }
        events.push_back(std::move(event));
    }
  }
  parsed_.clear();
}

}  // namespace weir
