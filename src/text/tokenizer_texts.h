// Large texts for tests and benches: ordinary ones, and those that are hard on a tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"
#include "text/tokenizer_unicode.h"

namespace weir::testing {

class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t below(uint64_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % limit;
  }

 private:
  uint64_t state_;
};

// Words of a made-up language, the frequent ones short, with punctuation, capitals, numbers and line ends.
inline std::string ordinary_text(size_t bytes) {
  static constexpr std::string_view kSyllables[] = {"the", "an", "in", "er",  "ou",  "ing", "re",  "st",  "al",
                                                    "to",  "is", "en", "qui", "har", "b",   "our", "ver", "é"};
  Draw draw(1);
  std::vector<std::string> words(20'000);
  for (std::string& word : words) {
    const uint64_t syllables = 1 + draw.below(4);
    for (uint64_t i = 0; i < syllables; ++i) word += kSyllables[draw.below(std::size(kSyllables))];
  }
  std::string text;
  while (text.size() < bytes) {
    const uint64_t span = uint64_t{1} << draw.below(15);  // Zipf, roughly
    std::string word = words[draw.below(span)];
    if (draw.below(12) == 0) word[0] = static_cast<char>(word[0] & ~0x20);
    text += word;
    const uint64_t after = draw.below(60);
    text += after == 0   ? ".\n"
            : after == 1 ? ".\n\n    "
            : after < 5  ? ", "
            : after == 5 ? " 1234 "
            : after == 6 ? "'s "
                         : " ";
  }
  text.resize(bytes);
  return repaired_utf8(text);
}

inline std::string repeated(std::string_view unit, size_t bytes) {
  std::string text;
  while (text.size() + unit.size() <= bytes) text += unit;
  return text;
}

inline std::vector<std::pair<std::string, std::string>> large_texts(size_t bytes) {
  Draw draw(2);
  std::string cjk, random;
  while (cjk.size() < bytes) append_utf8(cjk, static_cast<char32_t>(0x4e00 + draw.below(0x5000)));
  while (random.size() < bytes) random += static_cast<char>(draw.below(256));
  std::string marks = "a";
  while (marks.size() < bytes) marks += draw.below(2) == 0 ? "\xcc\x81" : "\xcc\xa3";
  return {{"ordinary", ordinary_text(bytes)},
          {"spaces", std::string(bytes, ' ')},
          {"spaces, then a letter", std::string(bytes - 1, ' ') + "x"},
          {"one letter", std::string(bytes, 'a')},
          {"one capital", std::string(bytes, 'A')},
          {"one digit", std::string(bytes, '7')},
          {"line ends", std::string(bytes, '\n')},
          {"punctuation", repeated("=-", bytes)},
          {"one word", repeated("the", bytes)},
          {"CJK without breaks", cjk},
          {"one CJK character", repeated("\xe4\xb8\xad", bytes)},
          {"combining marks", marks},
          {"broken UTF-8", random},
          {"cut special tokens", repeated("<|im_star", bytes)}};
}

}  // namespace weir::testing
