#include "text/think_splitter.h"

#include <algorithm>

namespace weir {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>", kSpaces = " \t\r\n";

void emit(ChatEvent::Kind kind, std::string_view text, std::string& whole, std::vector<ChatEvent>& events) {
  if (text.empty()) return;
  whole += text;
  events.push_back({.kind = kind, .text = std::string(text)});
}

// Where a tail begins that more text could make </think> of, white space in front included.
size_t undecided_tail(std::string_view text) {
  size_t at = text.size();
  for (size_t length = std::min(text.size(), kClose.size() - 1); length > 0; --length) {
    if (text.ends_with(kClose.substr(0, length))) {
      at = text.size() - length;
      break;
    }
  }
  while (at > 0 && kSpaces.find(text[at - 1]) != std::string_view::npos) --at;
  return at;
}

}  // namespace

bool ends_in_think(std::string_view prompt) {
  const size_t end = prompt.find_last_not_of(kSpaces);
  return end != std::string_view::npos && prompt.substr(0, end + 1).ends_with(kOpen);
}

bool ThinkSplitter::step(ParsedMessage& message, std::vector<ChatEvent>& events) {
  const size_t begin = std::min(held_.find_first_not_of(kSpaces), held_.size());
  switch (state_) {
    case State::kStart: {
      const std::string_view text = std::string_view(held_).substr(begin);
      if (text.starts_with(kOpen)) {
        held_.erase(0, begin + kOpen.size());
        state_ = State::kBeforeReasoning;
        return true;
      }
      if (kOpen.starts_with(text)) return false;
      state_ = State::kContent;
      return true;
    }
    case State::kBeforeReasoning:
    case State::kBeforeContent:
      held_.erase(0, begin);
      if (held_.empty()) return false;
      state_ = state_ == State::kBeforeReasoning ? State::kReasoning : State::kContent;
      return true;
    case State::kReasoning: {
      const size_t close = held_.find(kClose);
      const std::string_view text = std::string_view(held_).substr(0, close);
      // Before the tag, white space is dropped: a tail of nothing else is undecided.
      const size_t end = close == std::string::npos ? undecided_tail(text) : text.find_last_not_of(kSpaces) + 1;
      emit(ChatEvent::Kind::kReasoning, text.substr(0, end), message.reasoning, events);
      held_.erase(0, close == std::string::npos ? end : close + kClose.size());
      if (close == std::string::npos) return false;
      state_ = State::kBeforeContent;
      return true;
    }
    case State::kContent:
      emit(ChatEvent::Kind::kContent, held_, message.content, events);
      held_.clear();
      return false;
  }
  return false;
}

void ThinkSplitter::push(std::string_view piece, ParsedMessage& message, std::vector<ChatEvent>& events) {
  held_ += piece;
  while (step(message, events)) {}
}

void ThinkSplitter::finish(ParsedMessage& message, std::vector<ChatEvent>& events) {
  if (state_ == State::kReasoning) {
    emit(ChatEvent::Kind::kReasoning, held_, message.reasoning, events);
  } else {
    emit(ChatEvent::Kind::kContent, held_, message.content, events);
  }
  held_.clear();
}

}  // namespace weir
