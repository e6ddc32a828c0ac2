#include "text/kimi_parser.h"

#include <algorithm>

#include "text/kimi_json.h"

namespace weir {
namespace {

constexpr std::string_view kTags[] = {"message", "think", "response", "tools", "call", "argument", "json"};
constexpr size_t kMaxTag = 16384;  // bytes; what is longer is text

bool takes_attributes(std::string_view name) {
  return name == "message" || name == "call" || name == "argument" || name == "json";
}

// Could more text make a known tag of this?
bool may_become_tag(std::string_view text) {
  if (text.size() > kMaxTag) return false;
  return std::any_of(std::begin(kTags), std::end(kTags), [&](std::string_view name) {
    if (text.size() <= name.size()) return name.starts_with(text);
    return takes_attributes(name) && text.starts_with(name) && text[name.size()] == ' ';
  });
}

std::string unescape(std::string text) {
  for (const auto& [from, to] : {std::pair<std::string_view, char>{"&quot;", '"'}, {"&amp;", '&'}}) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; ++at) text.replace(at, from.size(), 1, to);
  }
  return text;
}

// NAME key="value" key="value". False when it is spelled otherwise.
bool parse_tag(std::string_view text, std::string* name, std::vector<std::pair<std::string, std::string>>* attributes) {
  size_t at = std::min(text.find(' '), text.size());
  *name = std::string(text.substr(0, at));
  while (at < text.size()) {
    const size_t equals = text.find("=\"", at);
    if (text[at] != ' ' || equals == std::string_view::npos) return false;
    const size_t close = text.find('"', equals + 2);
    if (close == std::string_view::npos) return false;
    attributes->emplace_back(text.substr(at + 1, equals - at - 1),
                             unescape(std::string(text.substr(equals + 2, close - equals - 2))));
    at = close + 1;
  }
  return true;
}

const std::string* find(const std::vector<std::pair<std::string, std::string>>& attributes, std::string_view key) {
  for (const auto& [name, value] : attributes) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace

KimiParser::KimiParser(Start start, std::string id_prefix)
    : channel_(start == Start::kThink ? Channel::kThink : Channel::kResponse),
      id_prefix_(std::move(id_prefix)),
      had_response_(start == Start::kResponse) {}

void KimiParser::emit(ChatEvent::Kind kind, std::string_view text) {
  if (text.empty()) return;
  // Text of one kind in a row is one event per call.
  const int index = kind == ChatEvent::Kind::kToolCallArguments ? calls_ - 1 : 0;
  if (!events_->empty() && events_->back().kind == kind && events_->back().index == index) {
    events_->back().text += text;
  } else {
    events_->push_back({.kind = kind, .index = index, .text = std::string(text)});
  }
}

void KimiParser::emit_arguments(std::string_view text) { emit(ChatEvent::Kind::kToolCallArguments, text); }

void KimiParser::marker(KimiMarker marker, std::vector<ChatEvent>& events) {
  events_ = &events;
  if (channel_ == Channel::kEnded) return;
  switch (marker) {
    case KimiMarker::kOpen:
    case KimiMarker::kClose:
      drop_tag_as_text();
      tag_ = marker == KimiMarker::kOpen ? Tag::kOpening : Tag::kClosing;
      break;
    case KimiMarker::kSep:
      if (tag_ == Tag::kNone) {
        route("<|sep|>");
      } else {
        resolve_tag();
      }
      break;
    case KimiMarker::kEnd:
      end(false);
      break;
  }
}

void KimiParser::text(std::string_view text, std::vector<ChatEvent>& events) {
  events_ = &events;
  if (tag_ == Tag::kNone) return route(text);
  tag_text_ += text;
  if (!may_become_tag(tag_text_)) drop_tag_as_text();
}

void KimiParser::finish(std::vector<ChatEvent>& events) {
  events_ = &events;
  if (channel_ != Channel::kEnded) end(channel_ != Channel::kClosed);
}

void KimiParser::drop_tag_as_text() {
  if (tag_ == Tag::kNone) return;
  route(tag_ == Tag::kOpening ? "<|open|>" : "<|close|>");
  route(std::exchange(tag_text_, {}));
  tag_ = Tag::kNone;
}

void KimiParser::resolve_tag() {
  std::string name;
  Attributes attributes;
  const bool known = parse_tag(tag_text_, &name, &attributes) &&
                     (tag_ == Tag::kOpening ? open_tag(name, attributes) : close_tag(name));
  if (!known) {
    drop_tag_as_text();
    route("<|sep|>");
  }
  tag_ = Tag::kNone;
  tag_text_.clear();
}

// False when the tag means nothing here.
bool KimiParser::open_tag(const std::string& name, const Attributes& attributes) {
  if (channel_ == Channel::kClosed) return true;
  if (name == "message") return true;
  if (name == "think") {
    leave_calls();
    channel_ = Channel::kThink;
    return true;
  }
  if (name == "response") {
    leave_calls();
    outside_.clear();
    had_response_ = true;
    channel_ = Channel::kResponse;
    return true;
  }
  if (name == "tools") {
    leave_calls();
    take_outside();
    channel_ = Channel::kTools;
    return true;
  }
  if (name == "call" && (in_calls() || channel_ == Channel::kOutside) && find(attributes, "tool")) {
    leave_argument();
    leave_call();
    if (channel_ == Channel::kOutside) take_outside();
    begin_call(attributes);
    return true;
  }
  const bool in_call = in_calls() && channel_ != Channel::kTools;
  if (name == "argument" && in_call && find(attributes, "key")) {
    leave_argument();
    if (!json_block_) begin_argument(attributes);
    return true;
  }
  if (name == "json" && in_call) {
    leave_argument();
    if (!streamed_argument_) {
      json_block_ = true;
      channel_ = Channel::kJson;
    }
    return true;
  }
  return false;
}

// A stray close tag is dropped.
bool KimiParser::close_tag(const std::string& name) {
  if (std::find(std::begin(kTags), std::end(kTags), name) == std::end(kTags)) return false;
  if (channel_ == Channel::kClosed) return true;
  if (name == "message") {
    leave_calls();
    channel_ = Channel::kClosed;
  } else if ((name == "think" && channel_ == Channel::kThink) ||
             (name == "response" && channel_ == Channel::kResponse)) {
    channel_ = Channel::kOutside;
  } else if (name == "tools" && in_calls()) {
    leave_calls();
  } else if (name == "call" && in_calls()) {
    leave_argument();
    leave_call();
  } else if ((name == "argument" && channel_ == Channel::kArgument) || (name == "json" && channel_ == Channel::kJson)) {
    leave_argument();
  }
  return true;
}

void KimiParser::route(std::string_view text) {
  switch (channel_) {
    case Channel::kThink:
      message_.reasoning += text;
      emit(ChatEvent::Kind::kReasoning, text);
      break;
    case Channel::kResponse:
      message_.content += text;
      emit(ChatEvent::Kind::kContent, text);
      break;
    case Channel::kOutside:
      if (!had_response_) outside_ += text;
      break;
    case Channel::kArgument:
      value_ += text;
      if (string_value_) {
        std::string escaped;
        append_json_escaped(escaped, text);
        emit_arguments(escaped);
      }
      break;
    case Channel::kJson:
      value_ += text;
      emit_arguments(text);
      break;
    case Channel::kTools:
    case Channel::kCall:
    case Channel::kClosed:
    case Channel::kEnded:
      break;
  }
}

void KimiParser::take_outside() {
  if (!had_response_ && !blank(outside_)) {
    message_.content += outside_;
    emit(ChatEvent::Kind::kContent, outside_);
  }
  outside_.clear();
}

void KimiParser::begin_call(const Attributes& attributes) {
  call_ = {.id = id_prefix_ + std::to_string(calls_), .name = *find(attributes, "tool")};
  arguments_.clear();
  streamed_argument_ = json_block_ = false;
  value_.clear();
  events_->push_back({.kind = ChatEvent::Kind::kToolCallStart, .index = calls_, .name = call_.name, .id = call_.id});
  ++calls_;
  channel_ = Channel::kCall;
}

void KimiParser::begin_argument(const Attributes& attributes) {
  const std::string* type = find(attributes, "type");
  key_ = *find(attributes, "key");
  value_.clear();
  string_value_ = !type || *type == "string";
  std::string begin = streamed_argument_ ? ", " : "{";
  begin += json_quoted(key_) + ": ";
  if (string_value_) begin += '"';
  emit_arguments(begin);
  streamed_argument_ = true;
  channel_ = Channel::kArgument;
}

void KimiParser::leave_argument() {
  if (channel_ == Channel::kArgument) {
    std::string json = string_value_ || !is_json(value_) ? json_quoted(value_) : value_;
    emit_arguments(string_value_ ? std::string_view("\"") : std::string_view(json));
    const auto known =
        std::find_if(arguments_.begin(), arguments_.end(), [&](const auto& a) { return a.first == key_; });
    if (known == arguments_.end()) {
      arguments_.emplace_back(key_, std::move(json));
    } else {
      known->second = std::move(json);
    }
  }
  if (channel_ == Channel::kArgument || channel_ == Channel::kJson) channel_ = Channel::kCall;
}

void KimiParser::leave_call() {
  if (channel_ != Channel::kCall) return;
  if (json_block_ && !value_.empty()) {
    call_.arguments = value_;
  } else if (!streamed_argument_) {
    call_.arguments = "{}";
    emit_arguments("{}");
  } else {
    emit_arguments("}");
    call_.arguments = "{";
    for (const auto& [key, json] : arguments_) {
      if (call_.arguments.size() > 1) call_.arguments += ", ";
      call_.arguments += json_quoted(key) + ": " + json;
    }
    call_.arguments += '}';
  }
  events_->push_back({.kind = ChatEvent::Kind::kToolCallEnd, .index = calls_ - 1});
  message_.tool_calls.push_back(std::move(call_));
  channel_ = Channel::kTools;
}

void KimiParser::leave_calls() {
  leave_argument();
  leave_call();
  if (channel_ == Channel::kTools) channel_ = Channel::kOutside;
}

void KimiParser::end(bool cut) {
  tag_ = Tag::kNone;  // a tag without its end is dropped
  tag_text_.clear();
  if (!cut) leave_calls();
  take_outside();
  message_.finish_reason = cut ? "length" : message_.tool_calls.empty() ? "stop" : "tool_calls";
  events_->push_back({.kind = ChatEvent::Kind::kEnd, .text = message_.finish_reason});
  channel_ = Channel::kEnded;
}

}  // namespace weir
