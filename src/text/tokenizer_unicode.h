// UTF-8 and the few character classes that tokenizers need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weir {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD
inline constexpr std::string_view kSpacePiece = "\xe2\x96\x81";            // U+2581, the space of SentencePiece

// Bytes of the character that begins with `lead`, in valid UTF-8.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}
char32_t utf8_at(std::string_view text, size_t at);      // valid UTF-8, at < size
size_t utf8_previous(std::string_view text, size_t at);  // where the character before `at` > 0 begins
void append_utf8(std::string& out, char32_t character);

// How the bytes at the front of a text begin.
struct Utf8Front {
  enum class Kind { kCharacter, kBroken, kCut } kind;
  size_t bytes;  // of the character; of the maximal broken part; all bytes, where more may complete a character
};
Utf8Front utf8_front(std::string_view text);  // not empty
bool is_utf8(std::string_view text);

// The text with broken parts replaced by U+FFFD.
std::string repaired_utf8(std::string_view text);

// The same for text that comes in parts: what may still become a character is held back.
class Utf8Repair {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  std::string held_;  // the beginning of a character, at most 3 bytes
};

bool is_white_space(char32_t c);     // Unicode White_Space
bool is_python_space(char32_t c);    // Python's str.isspace()
bool is_word_character(char32_t c);  // \w of UTS 18: alphabetic, mark, decimal number, connector punctuation, joiners

// The printable spelling of bytes in byte-level vocabularies: the bytes of a token's text, or false when a character
// is not part of that spelling.
bool bytes_of_spelling(std::string_view text, std::string& bytes);

}  // namespace weir
