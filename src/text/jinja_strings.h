// Operations on strings that filters and methods share. All keep the origins of the bytes that they keep.
#pragma once

#include <vector>

#include "text/jinja_runtime.h"
#include "text/jinja_text.h"
#include "text/jinja_unicode.h"

namespace weir::jinja {

// As std::string's find and rfind, in linear time whatever the strings.
size_t find_first(std::string_view text, std::string_view part, size_t from);
size_t find_last(std::string_view text, std::string_view part);

// `characters` null: whitespace.
Text strip(const Text& text, const Text* characters, bool left, bool right);
Text replace(Runtime& runtime, const Text& text, const Text& from, const Text& to, int64_t count);  // count < 0: all
std::vector<Text> split(Runtime& runtime, const Text& text, const Text* separator, int64_t most, bool from_right);
std::vector<Text> split_lines(Runtime& runtime, const Text& text, bool keep_ends);
Text map_case(const Text& text, Case to);
Text capitalize(const Text& text);
Text title(const Text& text,
           bool as_method);  // str.title, or Jinja's filter, which starts words after spaces and - ( { [ <
Text swap_case(const Text& text);
// `left` and `right` characters of `fill` around the text.
Text pad(Runtime& runtime, const Text& text, int64_t left, int64_t right, const Text& fill);
Text escape_html(const Text& text);
Text indent(Runtime& runtime, const Text& text, const Text& by, bool first, bool blank);
Text join(Runtime& runtime, const std::vector<Value>& items, const Text& separator);
size_t count_of(const Text& text, const Text& part);  // without overlaps

}  // namespace weir::jinja
