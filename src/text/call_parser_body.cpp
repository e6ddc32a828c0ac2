// The inside of calls.
#include <algorithm>

#include "text/call_parser.h"
#include "text/call_parser_scan.h"
#include "text/kimi_json.h"

namespace weir {
namespace {

constexpr size_t kMaxName = 256;  // bytes of a tool's name, or of a parameter's: what is longer is text

// Reads the beginning of a call's object from the front.
class HeadReader {
 public:
  enum class Result { kMatch, kMore, kOther };

  explicit HeadReader(std::string_view text) : text_(text) {}

  size_t at() const { return at_; }

  Result expect(std::initializer_list<std::string_view> words) {
    skip();
    const std::string_view rest = text_.substr(at_);
    bool more = false;
    for (const std::string_view word : words) {
      if (rest.starts_with(word)) {
        at_ += word.size();
        return Result::kMatch;
      }
      more = more || word.starts_with(rest);
    }
    return more ? Result::kMore : Result::kOther;
  }

  Result string(std::string& out) {
    skip();
    if (at_ == text_.size()) return Result::kMore;
    if (text_[at_] != '"') return Result::kOther;
    for (size_t i = at_ + 1; i < text_.size(); i += text_[i] == '\\' ? 2 : 1) {
      if (text_[i] != '"') continue;
      const auto read = read_json_string(text_, at_, JsonDialect::kStrict);
      if (!read || read->first.empty()) return Result::kOther;
      out = read->first;
      at_ = read->second;
      return Result::kMatch;
    }
    return Result::kMore;
  }

  void skip() { at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size()); }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

const boost::json::object* object_at(const boost::json::object* object, std::string_view key) {
  const boost::json::value* value = object ? object->if_contains(key) : nullptr;
  return value ? value->if_object() : nullptr;
}

bool says_string(const boost::json::value& type) {
  if (!type.is_array()) return type == "string";
  return std::ranges::any_of(type.get_array(), [](const boost::json::value& one) { return one == "string"; });
}

}  // namespace

ToolParameters::ToolParameters(const boost::json::array& tools) {
  for (const boost::json::value& tool : tools) {
    const boost::json::object* function = object_at(tool.if_object(), "function");
    const boost::json::value* name = function ? function->if_contains("name") : nullptr;
    if (!name || !name->is_string()) continue;
    auto& keys = tools_[std::string(name->get_string())];
    const boost::json::object* properties = object_at(object_at(function, "parameters"), "properties");
    if (!properties) continue;
    for (const auto& [key, schema] : *properties) {
      const boost::json::value* type = schema.is_object() ? schema.get_object().if_contains("type") : nullptr;
      keys[std::string(key)] = type && says_string(*type);
    }
  }
}

bool ToolParameters::is_string(std::string_view tool, std::string_view key) const {
  const auto known = tools_.find(tool);
  if (known == tools_.end()) return true;
  const auto parameter = known->second.find(key);
  return parameter == known->second.end() || parameter->second;
}

std::string ToolParameters::json_of(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  const std::string_view word = text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
  // As templates in Python spell them.
  if (word == "True") return "true";
  if (word == "False") return "false";
  if (word == "None") return "null";
  return is_json(text) ? std::string(word) : json_quoted(text);
}

bool CallParser::head() {
  const Verdict verdict = syntax_.body == CallSyntax::Body::kObject       ? object_head()
                          : syntax_.body == CallSyntax::Body::kParameters ? named_head()
                                                                          : raw_head();
  if (verdict == Verdict::kNo) give_back();
  return verdict != Verdict::kMore;
}

// {"name": NAME, "arguments": { can be passed on at once.
CallParser::Verdict CallParser::object_head() {
  using Result = HeadReader::Result;
  HeadReader reader(held_);
  Result result = reader.expect({"{"});
  if (result != Result::kMatch) return result == Result::kMore ? Verdict::kMore : Verdict::kNo;
  std::string name;
  const auto next = [&](Result now) {
    result = now;
    return now == Result::kMatch;
  };
  const bool usual = next(reader.expect({"\"name\""})) && next(reader.expect({":"})) && next(reader.string(name)) &&
                     next(reader.expect({","})) && next(reader.expect({"\"arguments\"", "\"parameters\""})) &&
                     next(reader.expect({":"})) && next(reader.expect({"{"}));
  if (result == Result::kMore) return Verdict::kMore;
  if (!usual) {
    state_ = State::kBuffered;
    return Verdict::kYes;
  }
  start_call(std::move(name));
  held_.erase(0, reader.at() - 1);
  depth_ = 0;
  in_string_ = escaped_ = false;
  state_ = State::kObject;
  return Verdict::kYes;
}

bool CallParser::buffered() {
  const size_t at = held_.find(syntax_.close);
  if (at == std::string::npos) return false;
  if (whole_call(std::string_view(held_).substr(0, at), false)) {
    held_.erase(0, at + syntax_.close.size());
  } else {
    give_back();
  }
  return true;
}

bool CallParser::object_arguments() {
  for (size_t i = 0; i < held_.size(); ++i) {
    const char c = held_[i];
    bool over = false;
    size_t end = i + 1;
    if (in_string_) {
      if (!escaped_ && c == '"') in_string_ = false;
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      over = --depth_ == 0;
    } else if (c == '<') {  // not JSON; the end of the call, as it seems
      over = true;
      end = i;
    }
    if (!over) continue;
    arguments(std::string_view(held_).substr(0, end));
    held_.erase(0, end);
    state_ = State::kTail;
    return true;
  }
  arguments(held_);
  held_.clear();
  return false;
}

CallParser::Verdict CallParser::raw_head() {
  const std::string_view before = syntax_.before_name, after = syntax_.after_name;
  if (held_.size() < before.size() && before.starts_with(held_)) return Verdict::kMore;
  if (!held_.starts_with(before)) return Verdict::kNo;
  const size_t end = held_.find(after, before.size());
  if (end == std::string::npos) {
    return held_.size() > before.size() + kMaxName + after.size() ? Verdict::kNo : Verdict::kMore;
  }
  std::string name = held_.substr(before.size(), end - before.size());
  if (!syntax_.number.empty()) {  // NAME:0
    const size_t colon = name.rfind(':');
    if (colon != std::string::npos && name.find_first_not_of("0123456789", colon + 1) == std::string::npos) {
      name.resize(colon);
    }
  }
  if (blank(name) || end > before.size() + kMaxName) return Verdict::kNo;
  start_call(std::move(name));
  held_.erase(0, end + after.size());
  state_ = State::kRaw;
  return Verdict::kYes;
}

bool CallParser::raw_arguments() {
  const size_t at = held_.find(syntax_.close);
  const size_t end = at == std::string::npos ? undecided(held_, {syntax_.close}) : at;
  arguments(std::string_view(held_).substr(0, end));
  held_.erase(0, end);
  if (at == std::string::npos) return false;
  held_.erase(0, syntax_.close.size());
  if (call_.arguments.empty()) arguments("{}");
  end_call();
  return true;
}

CallParser::Verdict CallParser::named_head() {
  const std::string_view before = syntax_.before_name;
  const size_t begin = std::min(held_.find_first_not_of(kBlanks), held_.size());
  const std::string_view rest = std::string_view(held_).substr(begin);
  if (rest.size() <= before.size() && before.starts_with(rest)) return Verdict::kMore;
  if (!rest.starts_with(before)) return Verdict::kNo;
  const size_t end = rest.find_first_of(syntax_.after_name, before.size());
  if (end == std::string_view::npos) {
    return rest.size() > before.size() + kMaxName ? Verdict::kNo : Verdict::kMore;
  }
  const std::string_view name = rest.substr(before.size(), end - before.size());
  if (name.empty() || name.size() > kMaxName || name.find_first_of(kBlanks) != name.npos) return Verdict::kNo;
  const size_t used = begin + end + (rest[end] == '<' ? 0 : 1);
  start_call(std::string(name));
  held_.erase(0, used);
  state_ = State::kKey;
  return Verdict::kYes;
}

bool CallParser::key() {
  held_.erase(0, std::min(held_.find_first_not_of(kBlanks), held_.size()));
  const std::string_view begin = syntax_.key, end = syntax_.end;
  if (held_.starts_with(begin)) {
    const size_t at = held_.find(syntax_.key_end, begin.size());
    if (at == std::string::npos && held_.size() <= begin.size() + kMaxName + syntax_.key_end.size()) return false;
    if (at <= begin.size() + kMaxName) {
      key_ = held_.substr(begin.size(), at - begin.size());
      held_.erase(0, at + syntax_.key_end.size());
      value_begun_ = false;
      state_ = State::kValue;
      return true;
    }
  } else if (!held_.starts_with(end) && (begin.starts_with(held_) || end.starts_with(held_))) {
    return false;
  }
  // The last key, or what is none.
  if (held_.starts_with(end) && end != syntax_.close) held_.erase(0, end.size());
  arguments(call_.arguments.empty() ? "{}" : "}");
  state_ = State::kTail;
  return true;
}

bool CallParser::value() {
  if (!value_begun_) {
    if (!syntax_.value.empty()) {
      held_.erase(0, std::min(held_.find_first_not_of(kBlanks), held_.size()));
      if (held_.size() < syntax_.value.size() && syntax_.value.starts_with(held_)) return false;
      if (held_.starts_with(syntax_.value)) held_.erase(0, syntax_.value.size());
    } else if (syntax_.value_on_lines) {
      if (held_.empty()) return false;
      if (held_[0] == '\n') held_.erase(0, 1);
    }
    string_value_ = parameters_.is_string(call_.name, key_);
    arguments((call_.arguments.empty() ? "{" : ", ") + json_quoted(key_) + ": " + (string_value_ ? "\"" : ""));
    value_begun_ = true;
  }
  const size_t at = held_.find(syntax_.value_end);
  if (at == std::string::npos && !string_value_) return false;
  size_t end = at == std::string::npos ? undecided(held_, {syntax_.value_end}) : at;
  if (syntax_.value_on_lines && end > 0 && held_[end - 1] == '\n') --end;
  const std::string_view text = std::string_view(held_).substr(0, end);
  if (string_value_) {
    std::string escaped;
    append_json_escaped(escaped, text);
    arguments(escaped);
  } else {
    arguments(ToolParameters::json_of(text));
  }
  if (at == std::string::npos) {
    held_.erase(0, end);
    return false;
  }
  held_.erase(0, at + syntax_.value_end.size());
  if (string_value_) arguments("\"");
  state_ = State::kKey;
  return true;
}

}  // namespace weir
