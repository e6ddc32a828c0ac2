#include "text/jinja_unicode.h"

#include <utf8proc.h>

#include <array>

namespace weir::jinja {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// Unconditional mappings to several characters (Unicode's SpecialCasing.txt) that text meets outside of Greek with
// iota subscripts.
struct SpecialCase {
  char32_t from;
  std::string_view upper, title;
};
constexpr std::array kSpecialCases = {
    SpecialCase{0xDF, "SS", "Ss"},
    SpecialCase{0x149, "\u02BCN", "\u02BCN"},
    SpecialCase{0x1F0, "J\u030C", "J\u030C"},
    SpecialCase{0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    SpecialCase{0x3B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    SpecialCase{0x587, "\u0535\u0552", "\u0535\u0582"},
    SpecialCase{0x1E96, "H\u0331", "H\u0331"},
    SpecialCase{0x1E97, "T\u0308", "T\u0308"},
    SpecialCase{0x1E98, "W\u030A", "W\u030A"},
    SpecialCase{0x1E99, "Y\u030A", "Y\u030A"},
    SpecialCase{0x1E9A, "A\u02BE", "A\u02BE"},
    SpecialCase{0xFB00, "FF", "Ff"},
    SpecialCase{0xFB01, "FI", "Fi"},
    SpecialCase{0xFB02, "FL", "Fl"},
    SpecialCase{0xFB03, "FFI", "Ffi"},
    SpecialCase{0xFB04, "FFL", "Ffl"},
    SpecialCase{0xFB05, "ST", "St"},
    SpecialCase{0xFB06, "ST", "St"},
};

}  // namespace

bool valid_utf8(std::string_view bytes) {
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(bytes.data());
  size_t at = 0;
  while (at < bytes.size()) {
    if (data[at] < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t c;
    const utf8proc_ssize_t length = utf8proc_iterate(data + at, static_cast<utf8proc_ssize_t>(bytes.size() - at), &c);
    if (length <= 0) return false;
    at += length;
  }
  return true;
}

char32_t decode_at(std::string_view bytes, size_t offset, size_t* length) {
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()) + offset;
  if (*data < 0x80) {
    *length = 1;
    return *data;
  }
  utf8proc_int32_t c;
  const utf8proc_ssize_t n = utf8proc_iterate(data, static_cast<utf8proc_ssize_t>(bytes.size() - offset), &c);
  *length = n > 0 ? n : 1;
  return n > 0 ? c : 0xFFFD;
}

void append_utf8(std::string& out, char32_t c) {
  if ((c >= 0xD800 && c < 0xE000) || c > 0x10FFFF) c = 0xFFFD;
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), buffer);
  out.append(reinterpret_cast<const char*>(buffer), n);
}

size_t count_characters(std::string_view bytes) {
  size_t count = 0;
  for (const char c : bytes) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

size_t character_offset(const Text& text, size_t index) {
  if (text.ascii()) return std::min(index, text.size());
  const std::string& bytes = text.bytes();
  for (size_t at = 0; at < bytes.size(); ++at) {
    if ((static_cast<unsigned char>(bytes[at]) & 0xC0) != 0x80 && index-- == 0) return at;
  }
  return bytes.size();
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || category(c) == UTF8PROC_CATEGORY_ZS || c == 0x2028 || c == 0x2029;
}

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

bool is_letter(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

void append_case(std::string& out, char32_t c, Case to) {
  if (c >= 0x80) {
    if (to == Case::kLower && c == 0x130) {
      out += "i\u0307";
      return;
    }
    if (to == Case::kFold && c == 0xDF) {
      out += "ss";
      return;
    }
    if (to == Case::kUpper || to == Case::kTitle) {
      for (const SpecialCase& special : kSpecialCases) {
        if (special.from != c) continue;
        out += to == Case::kUpper ? special.upper : special.title;
        return;
      }
    }
  }
  const auto code = static_cast<utf8proc_int32_t>(c);
  append_utf8(out, to == Case::kUpper   ? utf8proc_toupper(code)
                   : to == Case::kTitle ? utf8proc_totitle(code)
                                        : utf8proc_tolower(code));
}

}  // namespace weir::jinja
