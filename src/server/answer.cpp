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
  if (called_) message_.tool_calls.resize(1);
  if (!stopped() && end.reason == FinishReason::kLength) {
    message_.finish_reason = "length";
  } else {
    message_.finish_reason = message_.tool_calls.empty() || stop_.matched() ? "stop" : "tool_calls";
  }
  events.push_back({.kind = ChatEvent::Kind::kEnd, .text = message_.finish_reason});
}

void Answer::content(std::string text, std::vector<ChatEvent>& events) {
  if (text.empty()) return;
  message_.content += text;
  events.push_back({.kind = ChatEvent::Kind::kContent, .text = std::move(text)});
  add_to_pieces(events.back());
}

void Answer::add_to_pieces(const ChatEvent& event) {
  const auto grow = [&](AnswerPiece::Kind kind) {
    if (pieces_.empty() || pieces_.back().kind != kind) pieces_.push_back({.kind = kind});
    pieces_.back().text += event.text;
  };
  switch (event.kind) {
    case ChatEvent::Kind::kReasoning:
      return grow(AnswerPiece::Kind::kReasoning);
    case ChatEvent::Kind::kContent:
      return grow(AnswerPiece::Kind::kContent);
    case ChatEvent::Kind::kToolCallStart:
      pieces_.push_back({.kind = AnswerPiece::Kind::kCall, .name = event.name, .id = event.id});
      return;
    case ChatEvent::Kind::kToolCallArguments:
      return grow(AnswerPiece::Kind::kCall);
    case ChatEvent::Kind::kToolCallEnd:
      pieces_.back().whole = true;
      return;
    case ChatEvent::Kind::kEnd:
      return;
  }
}

// To the content that the newest token has brought, before stop strings hold it back. Tokens that yielded nothing count
// to it when content came before them too, since they are parts of a character then; elsewhere they are markup.
void Answer::tag_logprobs() {
  const bool grows = !pieces_.empty() && pieces_.back().kind == AnswerPiece::Kind::kContent;
  const size_t piece = pieces_.size() - (grows ? 1 : 0);
  const size_t newest = logprobs_.empty() ? 0 : logprobs_.size() - 1;
  for (size_t i = in_content_ ? tagged_ : newest; i < logprobs_.size(); ++i) {
    logprobs_[i].piece = static_cast<int32_t>(piece);
  }
}

void Answer::pass_on(std::vector<ChatEvent>& events) {
  for (ChatEvent& event : parsed_) {
    if (stopped()) break;
    const ChatEvent::Kind kind = event.kind;
    switch (kind) {
      case ChatEvent::Kind::kEnd:
        break;  // of the parser; ours comes last
      case ChatEvent::Kind::kContent:
        tag_logprobs();
        content(tokens_ < options_.min_tokens ? std::move(event.text) : stop_.push(event.text), events);
        break;
      default:
        content(stop_.finish(), events);
        if (event.kind == ChatEvent::Kind::kReasoning) {
          message_.reasoning += event.text;
          reasoning_tokens_ = tokens_;
        }
        called_ = called_ || (options_.one_call && event.kind == ChatEvent::Kind::kToolCallEnd);
        add_to_pieces(event);
        events.push_back(std::move(event));
    }
    in_content_ = kind == ChatEvent::Kind::kContent;
    tagged_ = logprobs_.size();
  }
  parsed_.clear();
}

}  // namespace weir
