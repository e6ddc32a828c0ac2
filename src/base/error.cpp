#include "base/error.h"

#include <charconv>

namespace weir {

void detail::append_double(std::string& out, double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  out.append(buffer, result.ptr);
}

namespace {

// Bytes of the UTF-8 character at `at` that a terminal shows; 0 for control characters and for what is no character.
size_t shown_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xc2 && byte(1) < 0xa0) return 0;                                           // C1 controls
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90)) return 0;    // longer than needed
  if ((first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90)) return 0;  // surrogates; too large
  return length;
}

}  // namespace

std::string one_line(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = shown_bytes(text, at);
    if (length > 0) {
      out += text.substr(at, length);
      at += length;
      continue;
    }
    const auto c = static_cast<unsigned char>(text[at++]);
    out += "\\x";
    out += kHex[c >> 4];
    out += kHex[c & 15];
  }
  return out;
}

std::string printable(std::string_view text, size_t limit) {
  std::string escaped;
  for (const char c : text.substr(0, limit)) {
    if (c == '\'' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return "'" + one_line(escaped) + (text.size() > limit ? "'..." : "'");
}

}  // namespace weir
