// The little JSON that Kimi's markup needs: values as they are spelled, without building them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weir {

enum class JsonDialect {
  kStrict,  // RFC 8259
  kPython,  // json.JSONDecoder(strict=False): NaN and infinities, control characters in strings
};

// The end of the value that begins at `at`; nullopt when there is none or it nests more than 200 deep.
std::optional<size_t> scan_json_value(std::string_view text, size_t at, JsonDialect dialect);

bool is_json(std::string_view text);  // one strict value, white space around it

// The string whose opening quote is at `at`, and the offset behind its closing quote. A lone surrogate becomes U+FFFD.
std::optional<std::pair<std::string, size_t>> read_json_string(std::string_view text, size_t at, JsonDialect dialect);

// `text` as the inside of a JSON string: Python's json.dumps(ensure_ascii=False) without its quotes.
void append_json_escaped(std::string& out, std::string_view text);
std::string json_quoted(std::string_view text);

struct JsonMember {
  std::string key;
  std::string_view value;  // as spelled
};

// The members of the object at the start of `text`, repeated keys too; what follows the object is ignored. Nullopt when
// there is no whole object. The dialect is kPython.
std::optional<std::vector<JsonMember>> read_json_members(std::string_view text);

}  // namespace weir
