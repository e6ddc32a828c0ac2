#include "text/kimi_json.h"

#include <cstdint>

#include "text/jinja_unicode.h"

namespace weir {
namespace {

constexpr int kMaxDepth = 200;
constexpr size_t kNone = std::string_view::npos;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Each skip returns the offset behind what it skips, kNone when it isn't there.
class Scanner {
 public:
  Scanner(std::string_view text, JsonDialect dialect) : text_(text), dialect_(dialect) {}

  size_t space(size_t at) const {
    while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\t' || text_[at] == '\n' || text_[at] == '\r')) ++at;
    return at;
  }

  size_t value(size_t at, int depth) const {
    if (depth > kMaxDepth || at >= text_.size()) return kNone;
    switch (look(at)) {
      case '"':
        return string(at);
      case '{':
        return container(at, '}', depth);
      case '[':
        return container(at, ']', depth);
      default:
        break;
    }
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at).starts_with(word)) return at + word.size();
    }
    if (dialect_ == JsonDialect::kPython) {
      for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
        if (text_.substr(at).starts_with(word)) return at + word.size();
      }
    }
    return number(at);
  }

  size_t string(size_t at) const {
    for (++at; at < text_.size(); ++at) {
      const char c = text_[at];
      if (c == '"') return at + 1;
      if (static_cast<unsigned char>(c) < 0x20 && dialect_ == JsonDialect::kStrict) return kNone;
      if (c != '\\') continue;
      ++at;
      if (look(at) == 'u') {
        for (int i = 1; i <= 4; ++i) {
          if (hex(look(at + i)) < 0) return kNone;
        }
        at += 4;
      } else if (std::string_view("\"\\/bfnrt").find(look(at)) == kNone || at >= text_.size()) {
        return kNone;
      }
    }
    return kNone;
  }

  static int hex(char c) {
    if (is_digit(c)) return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
  }

  char look(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

 private:
  size_t container(size_t at, char close, int depth) const {
    at = space(at + 1);
    if (look(at) == close) return at + 1;
    for (;;) {
      if (close == '}') {
        if (look(at) != '"' || (at = string(at)) == kNone) return kNone;
        at = space(at);
        if (look(at) != ':') return kNone;
        at = space(at + 1);
      }
      if ((at = value(at, depth + 1)) == kNone) return kNone;
      at = space(at);
      if (look(at) == close) return at + 1;
      if (look(at) != ',') return kNone;
      at = space(at + 1);
    }
  }

  size_t digits(size_t at) const {
    if (!is_digit(look(at))) return kNone;
    while (is_digit(look(at))) ++at;
    return at;
  }

  size_t number(size_t at) const {
    if (look(at) == '-') ++at;
    at = look(at) == '0' ? at + 1 : digits(at);
    if (at == kNone) return kNone;
    if (look(at) == '.' && is_digit(look(at + 1))) at = digits(at + 1);
    if (look(at) == 'e' || look(at) == 'E') {
      const size_t power = look(at + 1) == '-' || look(at + 1) == '+' ? at + 2 : at + 1;
      if (is_digit(look(power))) at = digits(power);
    }
    return at;
  }

  std::string_view text_;
  JsonDialect dialect_;
};

}  // namespace

std::optional<size_t> scan_json_value(std::string_view text, size_t at, JsonDialect dialect) {
  const size_t end = Scanner(text, dialect).value(at, 0);
  return end == kNone ? std::nullopt : std::optional(end);
}

bool is_json(std::string_view text) {
  const Scanner scanner(text, JsonDialect::kStrict);
  const size_t end = scanner.value(scanner.space(0), 0);
  return end != kNone && scanner.space(end) == text.size();
}

std::optional<std::pair<std::string, size_t>> read_json_string(std::string_view text, size_t at, JsonDialect dialect) {
  const Scanner scanner(text, dialect);
  const size_t end = scanner.look(at) == '"' ? scanner.string(at) : kNone;
  if (end == kNone) return std::nullopt;
  const auto unit = [&](size_t from) {
    char32_t code = 0;
    for (size_t i = 0; i < 4; ++i) code = code * 16 + Scanner::hex(text[from + i]);
    return code;
  };
  std::string out;
  for (size_t i = at + 1; i + 1 < end; ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    ++i;
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (text[i] != 'u') {
      out += kTo[kFrom.find(text[i])];
      continue;
    }
    char32_t code = unit(i + 1);
    i += 4;
    if (code >= 0xD800 && code < 0xDC00 && text.substr(i + 1).starts_with("\\u")) {
      const char32_t low = unit(i + 3);
      if (low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        i += 6;
      }
    }
    jinja::append_utf8(out, code);
  }
  return std::pair(std::move(out), end);
}

void append_json_escaped(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    static constexpr std::string_view kFrom = "\"\\\b\f\n\r\t", kTo = "\"\\bfnrt";
    if (const size_t simple = kFrom.find(c); simple != kNone) {
      out += '\\';
      out += kTo[simple];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  out += '"';
  return out;
}

std::optional<std::vector<JsonMember>> read_json_members(std::string_view text) {
  const Scanner scanner(text, JsonDialect::kPython);
  std::vector<JsonMember> out;
  size_t at = scanner.space(0);
  if (scanner.look(at) != '{') return std::nullopt;
  at = scanner.space(at + 1);
  if (scanner.look(at) == '}') return out;
  for (;;) {
    auto key = read_json_string(text, at, JsonDialect::kPython);
    if (!key) return std::nullopt;
    at = scanner.space(key->second);
    if (scanner.look(at) != ':') return std::nullopt;
    at = scanner.space(at + 1);
    const size_t end = scanner.value(at, 1);
    if (end == kNone) return std::nullopt;
    out.push_back({std::move(key->first), text.substr(at, end - at)});
    at = scanner.space(end);
    const char next = scanner.look(at);
    if (next == '}') return out;
    if (next != ',') return std::nullopt;
    at = scanner.space(at + 1);
  }
}

}  // namespace weir
