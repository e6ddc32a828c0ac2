#include "text/jinja_lexer.h"

#include <array>
#include <charconv>

#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace weir::jinja {
namespace {

using Kind = Token::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

// Line ends become LF; one at the end of the file is dropped.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(const std::string& name, std::string_view source) : name_(name), source_(normalize_lines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    push(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw TemplateError(concat(name_, ":", line_, ": ", what), false);
  }

  bool see(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }

  void push(Kind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  void advance_to(size_t end) {
    for (; at_ < end; ++at_) line_ += source_[at_] == '\n';
  }

  size_t skip_space(size_t from) const {
    while (from < source_.size()) {
      size_t n;
      if (!is_space(decode_at(source_, from, &n))) break;
      from += n;
    }
    return from;
  }

  // The end of `text` without whitespace at its end.
  static size_t strip_end(std::string_view text) {
    size_t keep = 0;
    for (size_t at = 0, n = 0; at < text.size(); at += n) {
      if (!is_space(decode_at(text, at, &n))) keep = at + n;
    }
    return keep;
  }

  // `sign` is the one of the tag that follows the data.
  void push_data(std::string_view text, char sign, bool variable) {
    if (sign == '-') {
      text = text.substr(0, strip_end(text));
    } else if (sign != '+' && !variable) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      if (newline != std::string_view::npos || line_starting_) {
        const std::string_view last = text.substr(line_begin);
        if (skip_space_in(last) == last.size()) text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) push(Kind::kData, std::string(text));
  }

  static size_t skip_space_in(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
      size_t n;
      if (!is_space(decode_at(text, at, &n))) break;
      at += n;
    }
    return at;
  }

  char sign_at(size_t at) const {
    const char c = at < source_.size() ? source_[at] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  // Data up to the next tag, and the tag's tokens.
  void data() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        if (begin < source_.size()) push(Kind::kData, source_.substr(begin));
        advance_to(source_.size());
        return;
      }
      const char c = source_[tag + 1];
      if (c == '%' || c == '{' || c == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    push_data(std::string_view(source_).substr(begin, tag - begin), sign, kind == '{');
    advance_to(tag + 2);
    if (sign != '\0') ++at_;
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    push(kind == '{' ? Kind::kVariableBegin : Kind::kBlockBegin, "");
    expression(kind == '{' ? Kind::kVariableEnd : Kind::kBlockEnd);
  }

  // The end of a tag whose closing mark begins at `at`, sign included: whitespace or a newline may belong to it.
  size_t tag_end(size_t at, bool variable) const {
    const char sign = sign_at(at);
    size_t end = at + (sign != '\0' ? 3 : 2);
    if (sign == '-') {
      end = skip_space(end);
    } else if (sign == '\0' && !variable && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    return end;
  }

  void finish_tag(size_t at, bool variable) {
    advance_to(tag_end(at, variable));
    line_starting_ = source_[at_ - 1] == '\n';
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment is not closed");
    const bool sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    finish_tag(sign ? end - 1 : end, false);
  }

  // {% raw %} data {% endraw %}, after its {%.
  bool raw() {
    size_t at = skip_space(at_);
    if (source_.compare(at, 3, "raw") != 0) return false;
    at = skip_space(at + 3);
    const bool strip = at < source_.size() && source_[at] == '-';
    if (source_.compare(at + strip, 2, "%}") != 0) return false;
    at += strip + 2;
    if (strip) at = skip_space(at);
    advance_to(at);
    line_starting_ = source_[at_ - 1] == '\n';
    for (size_t tag = source_.find("{%", at); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      const char sign = sign_at(tag + 2);
      size_t word = skip_space(tag + 2 + (sign != '\0'));
      if (source_.compare(word, 6, "endraw") != 0) continue;
      word = skip_space(word + 6);
      const size_t close = word + (sign_at(word) != '\0');
      if (source_.compare(close, 2, "%}") != 0) continue;
      push_data(std::string_view(source_).substr(at, tag - at), sign, false);
      finish_tag(word, false);
      return true;
    }
    fail("a raw block is not closed");
  }

  void expression(Kind end) {
    const bool variable = end == Kind::kVariableEnd;
    const char* close = variable ? "}}" : "%}";
    std::string open;  // brackets that wait for their partner
    for (;;) {
      advance_to(skip_space(at_));
      if (at_ >= source_.size()) fail(concat("a tag is not closed: expected '", close, "'"));
      if (open.empty()) {
        const char sign = sign_at(at_);
        const bool signed_end = sign == '-' || (sign == '+' && !variable);
        if (see(close) || (signed_end && source_.compare(at_ + 1, 2, close) == 0)) {
          push(end, "");
          return finish_tag(at_, variable);
        }
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = peek();
    if (starts_name(c)) return name();
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return string(c);
    static constexpr std::array<std::string_view, 25> kOperators = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/",
                                                                    "*",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                                                    "]",  "{",  "}",  "|",  ",",  ".",  ":"};
    for (const std::string_view op : kOperators) {
      if (!see(op)) continue;
      if (op == "(" || op == "[" || op == "{") open += op == "(" ? ')' : op == "[" ? ']' : '}';
      if (op == ")" || op == "]" || op == "}") {
        if (open.empty() || open.back() != op[0]) fail(concat("unexpected '", op, "'"));
        open.pop_back();
      }
      if (open.size() > 200) fail("brackets nest more than 200 deep");
      push(Kind::kOperator, std::string(op));
      at_ += op.size();
      return;
    }
    size_t n;
    decode_at(source_, at_, &n);
    fail(concat("unexpected character ", printable(source_.substr(at_, n))));
  }

  void name() {
    const size_t begin = at_;
    while (at_ < source_.size() && (starts_name(peek()) || is_digit(peek()))) ++at_;
    push(Kind::kName, source_.substr(begin, at_ - begin));
  }

  std::string digits(bool (*accept)(char)) {
    std::string out;
    while (accept(peek()) || (peek() == '_' && !out.empty() && accept(peek(1)))) {
      if (peek() != '_') out += peek();
      ++at_;
    }
    return out;
  }

  void number() {
    int base = 10;
    const char mark = static_cast<char>(peek(1) | 0x20);
    if (peek() == '0' && (mark == 'x' || mark == 'b' || mark == 'o')) {
      base = mark == 'x' ? 16 : mark == 'b' ? 2 : 8;
      at_ += 2;
    }
    std::string text =
        digits(base == 16 ? [](char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }
                          : [](char c) { return is_digit(c); });
    bool whole = true;
    const bool after_dot = !tokens_.empty() && tokens_.back().is(".");  // x.0.1 is x[0][1]
    if (base == 10 && !after_dot) {
      if (peek() == '.' && is_digit(peek(1))) {
        ++at_;
        text += "." + digits(is_digit);
        whole = false;
      }
      const bool sign = peek(1) == '+' || peek(1) == '-';
      if ((peek() == 'e' || peek() == 'E') && is_digit(peek(sign ? 2 : 1))) {
        text += 'e';
        if (peek(1) == '-') text += '-';
        at_ += sign ? 2 : 1;
        text += digits(is_digit);
        whole = false;
      }
    }
    push(whole ? Kind::kInteger : Kind::kFloat, text);
    Token& token = tokens_.back();
    const char* end = text.data() + text.size();
    const auto read = whole ? std::from_chars(text.data(), end, token.integer, base)
                            : std::from_chars(text.data(), end, token.number);
    if (read.ec != std::errc() || read.ptr != end)
      fail(concat("number ", printable(text), " is malformed or too large"));
  }

  void string(char quote) {
    const int line = line_;
    std::string out;
    size_t at = at_ + 1;
    for (;; ++at) {
      if (at >= source_.size()) fail("a string is not closed");
      const char c = source_[at];
      if (c == quote) break;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (++at >= source_.size()) fail("a string is not closed");
      at = escape(at, out);
    }
    advance_to(at + 1);
    push(Kind::kString, std::move(out));
    tokens_.back().line = line;
  }

  // Python's escapes; `at` is the character after the backslash. Returns the last character used.
  size_t escape(size_t at, std::string& out) const {
    const char c = source_[at];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      out += kTo[simple];
      return at;
    }
    if (c == '\n') return at;  // the line goes on
    if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t code = 0;
      const char* begin = source_.data() + std::min(at + 1, source_.size());
      const char* end = source_.data() + std::min(at + 1 + count, source_.size());
      const auto read = std::from_chars(begin, end, code, 16);
      if (read.ec != std::errc() || read.ptr != begin + count || code > 0x10FFFF)
        fail("a string has a malformed escape");
      append_utf8(out, code);
      return at + count;
    }
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t end = at;
      for (; end < at + 3 && end < source_.size() && source_[end] >= '0' && source_[end] <= '7'; ++end) {
        code = code * 8 + (source_[end] - '0');
      }
      append_utf8(out, code);
      return end - 1;
    }
    out += '\\';
    out += c;
    return at;
  }

  const std::string& name_;
  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const std::string& name, std::string_view source) { return Lexer(name, source).run(); }

}  // namespace weir::jinja
