// Characters as Python's str sees them. All strings are valid UTF-8 here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja_text.h"

namespace weir::jinja {

bool valid_utf8(std::string_view bytes);
char32_t decode_at(std::string_view bytes, size_t offset, size_t* length);  // length in bytes of the character
void append_utf8(std::string& out, char32_t c);                             // a surrogate becomes U+FFFD
size_t count_characters(std::string_view bytes);
size_t character_offset(const Text& text, size_t index);  // byte offset of a character; size() when beyond the end

bool is_space(char32_t c);      // str.isspace
bool is_printable(char32_t c);  // str.isprintable
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_cased(char32_t c);
bool is_letter(char32_t c);
bool is_number(char32_t c);   // any of \p{N}: str.isnumeric, nearly
bool is_decimal(char32_t c);  // \p{Nd}

enum class Case { kUpper, kLower, kTitle, kFold };
// Full mappings where they matter (a sharp s becomes SS), without the context of a final sigma.
void append_case(std::string& out, char32_t c, Case to);

}  // namespace weir::jinja
