#include "text/tokenizer_normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

using Kind = NormalizerStep::Kind;

// Orders marks by combining class. utf8proc's own loop is quadratic in the length of a run of marks.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto is_mark = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class != 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), is_mark);
    const auto end = std::find_if_not(begin, characters.end(), is_mark);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return utf8proc_get_property(a)->combining_class < utf8proc_get_property(b)->combining_class;
    });
    begin = end;
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
    const utf8proc_ssize_t count = utf8proc_decompose_char(c, parts, 32, options, &boundary);
    if (count < 0 || count > 32) fail("utf8proc can't decompose U+", static_cast<int64_t>(c));
    characters.insert(characters.end(), parts, parts + count);
  }
  order_marks(characters);
  auto count = static_cast<utf8proc_ssize_t>(characters.size());
  if (compose) count = utf8proc_normalize_utf32(characters.data(), count, options);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(out, static_cast<char32_t>(characters[static_cast<size_t>(i)]));
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

std::string without_accents(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const auto c = static_cast<utf8proc_int32_t>(utf8_at(text, at));
    const utf8proc_category_t category = utf8proc_category(c);
    const bool mark =
        category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
    if (!mark) out += text.substr(at, utf8_length(text[at]));
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
    case Kind::kStripAccents:
      return without_accents(text);
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
