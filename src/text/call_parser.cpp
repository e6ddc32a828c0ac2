#include "text/call_parser.h"

#include <algorithm>
#include <initializer_list>

#include "text/call_parser_scan.h"
#include "text/kimi_json.h"

namespace weir {

CallParser::CallParser(const CallSyntax& syntax, const boost::json::array& tools, std::string id_prefix)
    : syntax_(syntax), parameters_(tools), id_prefix_(std::move(id_prefix)) {}

void CallParser::push(std::string_view text, ParsedMessage& message, std::vector<ChatEvent>& events) {
  message_ = &message;
  events_ = &events;
  held_ += text;
  while (step()) {}
}

void CallParser::finish(bool complete, ParsedMessage& message, std::vector<ChatEvent>& events) {
  push("", message, events);
  switch (state_) {
    case State::kObject:
    case State::kKey:
    case State::kValue:
      break;  // cut
    case State::kRaw:
      if (complete && is_json(call_.arguments + held_)) {
        arguments(held_);
        end_call();
      }
      break;
    case State::kTail:
      end_call();
      break;
    case State::kBuffered:
    case State::kLookalike:
      if (complete && whole_call(held_, state_ == State::kLookalike)) break;
      [[fallthrough]];
    default:
      if (!blank(held_) || !blank(pending_) || !after_call_) content(pending_ + held_);
  }
  held_.clear();
  pending_.clear();
}

bool CallParser::step() {
  switch (state_) {
    case State::kText:
      return text();
    case State::kSection:
      return section();
    case State::kHead:
      return head();
    case State::kBuffered:
      return buffered();
    case State::kObject:
      return object_arguments();
    case State::kRaw:
      return raw_arguments();
    case State::kKey:
      return key();
    case State::kValue:
      return value();
    case State::kTail:
      return tail();
    case State::kLookalike:
      break;
  }
  return false;
}

bool CallParser::text() {
  const size_t begin = std::min(held_.find_first_not_of(kBlanks), held_.size());
  if (after_call_) held_.erase(0, begin);
  if (held_.empty()) return false;
  if (at_start_ && syntax_.open.empty()) {
    if (begin == held_.size()) return false;
    at_start_ = false;
    if (held_[begin] == '{') {
      state_ = State::kLookalike;
      return false;
    }
  }
  const Found found = find_first(held_, {syntax_.section, syntax_.open});
  if (found.at != std::string::npos) {
    const size_t keep = without_blanks(held_, found.at);
    content(std::string_view(held_).substr(0, keep));
    pending_ = held_.substr(keep, found.at + found.length - keep);
    held_.erase(0, found.at + found.length);
    state_ = found.which == 0 ? State::kSection : State::kHead;
    return true;
  }
  const size_t safe = without_blanks(held_, undecided(held_, {syntax_.section, syntax_.open}));
  content(std::string_view(held_).substr(0, safe));
  held_.erase(0, safe);
  return false;
}

bool CallParser::section() {
  const size_t begin = std::min(held_.find_first_not_of(kBlanks), held_.size());
  pending_ += held_.substr(0, begin);
  held_.erase(0, begin);
  if (held_.starts_with(syntax_.open)) {
    pending_ += syntax_.open;
    held_.erase(0, syntax_.open.size());
    state_ = State::kHead;
    return true;
  }
  if (held_.starts_with(syntax_.section_end)) {
    held_.erase(0, syntax_.section_end.size());
    pending_.clear();
    after_call_ = true;
    state_ = State::kText;
    return true;
  }
  if (syntax_.open.starts_with(held_) || syntax_.section_end.starts_with(held_)) return false;
  give_back();
  return true;
}

bool CallParser::tail() {
  const Found found = find_first(held_, {syntax_.close, syntax_.open});
  if (found.at == std::string::npos) {
    held_.erase(0, undecided(held_, {syntax_.close, syntax_.open}));
    return false;
  }
  // The next call may begin where this one was not closed.
  held_.erase(0, found.at + (found.which == 0 ? found.length : 0));
  end_call();
  return true;
}

void CallParser::give_back() {
  if (!blank(pending_) || !after_call_) content(pending_);
  pending_.clear();
  state_ = State::kText;
}

bool CallParser::whole_call(std::string_view json, bool declared_only) {
  if (!is_json(json)) return false;
  const auto members = read_json_members(json.substr(std::min(json.find_first_not_of(kBlanks), json.size())));
  if (!members) return false;
  std::string name, given;
  for (const JsonMember& member : *members) {
    const bool text = member.value.starts_with('"');
    if (member.key == "name" && text) name = read_json_string(member.value, 0, JsonDialect::kStrict)->first;
    if (member.key != "arguments" && member.key != "parameters") continue;
    if (member.value.starts_with('{')) given = member.value;
    if (text) given = read_json_string(member.value, 0, JsonDialect::kStrict)->first;
  }
  if (name.empty()) return false;
  if (declared_only && (given.empty() || !parameters_.declared(name))) return false;
  start_call(std::move(name));
  arguments(given.empty() ? "{}" : given);
  end_call();
  return true;
}

void CallParser::start_call(std::string name) {
  pending_.clear();
  call_ = {.id = id_prefix_ + std::to_string(calls_), .name = std::move(name)};
  events_->push_back({.kind = ChatEvent::Kind::kToolCallStart, .index = calls_, .name = call_.name, .id = call_.id});
}

void CallParser::arguments(std::string_view json) {
  if (json.empty()) return;
  call_.arguments += json;
  ChatEvent* last = events_->empty() ? nullptr : &events_->back();
  if (last && last->kind == ChatEvent::Kind::kToolCallArguments) {
    last->text += json;
  } else {
    events_->push_back({.kind = ChatEvent::Kind::kToolCallArguments, .index = calls_, .text = std::string(json)});
  }
}

void CallParser::end_call() {
  events_->push_back({.kind = ChatEvent::Kind::kToolCallEnd, .index = calls_++});
  message_->tool_calls.push_back(std::move(call_));
  after_call_ = true;
  state_ = syntax_.section.empty() ? State::kText : State::kSection;
}

void CallParser::content(std::string_view text) {
  if (text.empty()) return;
  after_call_ = false;
  message_->content += text;
  if (!events_->empty() && events_->back().kind == ChatEvent::Kind::kContent) {
    events_->back().text += text;
  } else {
    events_->push_back({.kind = ChatEvent::Kind::kContent, .text = std::string(text)});
  }
}

}  // namespace weir
