// Finding marks in text that arrives in pieces.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace weir {

inline constexpr std::string_view kBlanks = " \t\r\n";

inline bool blank(std::string_view text) { return text.find_first_not_of(kBlanks) == std::string_view::npos; }

// `end` without the white space in front of it.
inline size_t without_blanks(std::string_view text, size_t end) {
  while (end > 0 && kBlanks.find(text[end - 1]) != std::string_view::npos) --end;
  return end;
}

struct Found {
  size_t at = std::string_view::npos, length = 0, which = 0;
};

// The first of the marks that are not empty.
inline Found find_first(std::string_view text, std::initializer_list<std::string_view> marks) {
  Found out;
  size_t which = 0;
  for (const std::string_view mark : marks) {
    const size_t at = mark.empty() ? std::string_view::npos : text.find(mark);
    if (at < out.at) out = {at, mark.size(), which};
    ++which;
  }
  return out;
}

// Where the end begins that more text could make one of the marks of; the text's size when there is none.
inline size_t undecided(std::string_view text, std::initializer_list<std::string_view> marks) {
  size_t at = text.size();
  for (const std::string_view mark : marks) {
    for (size_t length = std::min(text.size(), mark.empty() ? 0 : mark.size() - 1); length > 0; --length) {
      if (!text.ends_with(mark.substr(0, length))) continue;
      at = std::min(at, text.size() - length);
      break;
    }
  }
  return at;
}

}  // namespace weir
