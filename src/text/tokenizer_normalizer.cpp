#include "text/tokenizer_normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

using Kind = NormalizerStep::Kind;

struct CharacterRange {
  utf8proc_int32_t first, last;
};

// The tokenizers library normalises by the tables of Unicode 9, and vocabularies were made with it. Marks, and
// characters with decompositions, that are newer: to it they are plain characters.
constexpr CharacterRange kNewMarks[] = {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
                                        {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
                                        {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
                                        {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
                                        {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
                                        {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
                                        {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
                                        {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
                                        {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}};
constexpr CharacterRange kNewDecompositions[] = {{0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xab69, 0xab69},
                                                 {0x10781, 0x107ba}, {0x11938, 0x11938}, {0x1e030, 0x1e06d},
                                                 {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

template <size_t n>
bool is_in(const CharacterRange (&ranges)[n], utf8proc_int32_t c) {
  if (c < ranges[0].first) return false;
  const auto* range = std::lower_bound(std::begin(ranges), std::end(ranges), c,
                                       [](const CharacterRange& r, utf8proc_int32_t value) { return r.last < value; });
  return range != std::end(ranges) && range->first <= c;
}

int combining_class(utf8proc_int32_t c) {
  if (c < 0x300 || is_in(kNewMarks, c)) return 0;
  return utf8proc_get_property(c)->combining_class;
}

// Orders marks by combining class, equal ones as they stand. utf8proc's own loop is quadratic in the length of a run.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
  std::vector<std::pair<uint64_t, utf8proc_int32_t>> run;  // class and place, mark
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), is_mark);
    const auto end = std::find_if_not(begin, characters.end(), is_mark);
    run.clear();
    for (auto at = begin; at != end; ++at) {
      run.emplace_back(static_cast<uint64_t>(combining_class(*at)) << 32 | run.size(), *at);
    }
    std::sort(run.begin(), run.end());
    std::transform(run.begin(), run.end(), begin, [](const auto& entry) { return entry.second; });
    begin = end;
  }
}

// Composes what may be composed; nothing across the beginning of a new mark.
void append_composed(std::vector<utf8proc_int32_t>& characters, utf8proc_option_t options, std::string& out) {
  for (size_t begin = 0, end = 0; begin < characters.size(); begin = end) {
    end = begin + 1;
    while (end < characters.size() && !is_in(kNewMarks, characters[end])) ++end;
    const utf8proc_ssize_t count =
        utf8proc_normalize_utf32(&characters[begin], static_cast<utf8proc_ssize_t>(end - begin), options);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      append_utf8(out, static_cast<char32_t>(characters[begin + static_cast<size_t>(i)]));
    }
  }
}

std::string unicode_form(std::string_view text, bool compatibility, bool compose) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compatibility ? UTF8PROC_COMPAT : 0) |
                                                      (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE));
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const auto c = static_cast<utf8proc_int32_t>(utf8_at(text, at));
    if (c < 0x80 || is_in(kNewDecompositions, c)) {
      characters.push_back(c);
      continue;
    }
    const utf8proc_ssize_t count = utf8proc_decompose_char(c, parts, 32, options, &boundary);
    if (count < 0 || count > 32) fail("utf8proc can't decompose U+", static_cast<int64_t>(c));
    characters.insert(characters.end(), parts, parts + count);
  }
  order_marks(characters);
  std::string out;
  out.reserve(text.size());
  if (compose) {
    append_composed(characters, options, out);
  } else {
    for (utf8proc_int32_t c : characters) append_utf8(out, static_cast<char32_t>(c));
  }
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const char32_t c = utf8_at(text, at);
    if (c == 0x130) {
      out += "i\xcc\x87";  // the only character whose lower case is two
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty() && is_white_space(utf8_at(text, 0))) text.remove_prefix(utf8_length(text[0]));
  while (right && !text.empty()) {
    const size_t last = utf8_previous(text, text.size());
    if (!is_white_space(utf8_at(text, last))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string replaced(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(pattern); at != text.npos; at = text.find(pattern, done)) {
    out += text.substr(done, at - done);
    out += content;
    done = at + pattern.size();
  }
  return out += text.substr(done);
}

std::string applied(const NormalizerStep& step, std::string_view text) {
  switch (step.kind) {
    case Kind::kNfc:
      return unicode_form(text, false, true);
    case Kind::kNfd:
      return unicode_form(text, false, false);
    case Kind::kNfkc:
      return unicode_form(text, true, true);
    case Kind::kNfkd:
      return unicode_form(text, true, false);
    case Kind::kLowercase:
      return lowercase(text);
    case Kind::kReplace:
      return step.regex ? step.regex->replace_all(text, step.content) : replaced(text, step.pattern, step.content);
    case Kind::kPrepend:
      return text.empty() ? std::string() : concat(step.content, text);
    case Kind::kStrip:
      return std::string(stripped(text, step.left, step.right));
  }
  return std::string(text);
}

}  // namespace

std::string normalized(const Normalizer& normalizer, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : normalizer) out = applied(step, out);
  return out;
}

}  // namespace weir
