#include "text/tokenizer_unicode.h"

#include <utf8proc.h>

#include <array>

namespace weir {

char32_t utf8_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  switch (utf8_length(text[at])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

size_t utf8_previous(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xe0 | c >> 12);
    } else {
      put(0xf0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3f));
    }
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

Utf8Front utf8_front(std::string_view text) {
  using Kind = Utf8Front::Kind;
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {Kind::kCharacter, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Kind::kBroken, 1};
  const size_t length = utf8_length(text[0]);
  // The second byte's range rules out overlong forms, surrogates and what lies beyond U+10FFFF.
  unsigned char low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Kind::kCut, i};
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < low || byte > high) return {Kind::kBroken, i};
    low = 0x80;
    high = 0xbf;
  }
  return {Kind::kCharacter, length};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    size_t ascii = 0;
    while (ascii < text.size() && static_cast<unsigned char>(text[ascii]) < 0x80) ++ascii;
    text.remove_prefix(ascii);
    if (text.empty()) break;
    const Utf8Front front = utf8_front(text);
    if (front.kind != Utf8Front::Kind::kCharacter) return false;
    text.remove_prefix(front.bytes);
  }
  return true;
}

std::string repaired_utf8(std::string_view text) {
  std::string out;
  Utf8Repair repair;
  repair.push(text, out);
  repair.finish(out);
  return out;
}

void Utf8Repair::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  while (!bytes.empty()) {
    const Utf8Front front = utf8_front(bytes);
    if (front.kind == Utf8Front::Kind::kCut) {
      held_ = bytes;
      return;
    }
    out += front.kind == Utf8Front::Kind::kCharacter ? bytes.substr(0, front.bytes) : kReplacementCharacter;
    bytes.remove_prefix(front.bytes);
  }
}

void Utf8Repair::finish(std::string& out) {
  if (!held_.empty()) out += kReplacementCharacter;
  held_.clear();
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
             (c >= 0x1f170 && c <= 0x1f189) ||  // Other_Alphabetic that are symbols: circled and squared letters
             c == 0x200c || c == 0x200d;
  }
}

namespace {

// GPT-2's spelling: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up in order.
std::array<int16_t, 324> make_spelling() {
  std::array<int16_t, 324> bytes;
  bytes.fill(-1);
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    bytes[static_cast<size_t>(itself ? b : next++)] = static_cast<int16_t>(b);
  }
  return bytes;
}

}  // namespace

bool bytes_of_spelling(std::string_view text, std::string& bytes) {
  static const std::array<int16_t, 324> kSpelling = make_spelling();
  bytes.clear();
  if (!is_utf8(text)) return false;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = utf8_at(text, at);
    if (c >= kSpelling.size() || kSpelling[c] < 0) return false;
    bytes += static_cast<char>(kSpelling[c]);
  }
  return true;
}

}  // namespace weir
