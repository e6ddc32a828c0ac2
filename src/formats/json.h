// JSON of untrusted files: a bounded parser (RFC 8259, UTF-8, no extensions) and typed access that names file and
// field.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

struct JsonLimits {
  int64_t max_bytes = int64_t{64} << 20;
  int max_depth = 64;  // of arrays and objects inside each other
  // Of memory while parsing: a list of zeros may take 36 times its text, but 100 MB of tensor names and shapes take
  // 450.
  int64_t max_memory = int64_t{640} << 20;
};

// Throws Error "FILE: not JSON at byte N: REASON". Beyond the grammar, refuses duplicate keys in an object (readers
// disagree on which one counts), numbers too large for a double, and values that take more memory than max_memory.
// `file` only names the text in messages. The value shares one arena that is freed as a whole, so it is quick to build
// and to drop, but keeps its memory when edited.
boost::json::value parse_json(std::string_view text, const std::string& file, JsonLimits limits = {});

// The same for the contents of a file. A UTF-8 byte order mark is refused like any other byte that is not JSON.
boost::json::value read_json_file(const std::string& path, JsonLimits limits = {});

// A JSON object of a file, with checked, typed access. Each accessor throws Error
// "FILE: field 'a.b': expected WHAT, found WHAT". A null field counts as absent. Copies share the object.
class JsonObject {
 public:
  // `path` leads from the file's root to the object, as "a.b"; empty for the root.
  JsonObject(std::string file, std::string path, boost::json::object object);

  // The root of a file; Error when it is not an object.
  static JsonObject read(const std::string& path, JsonLimits limits = {});

  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }
  bool has(std::string_view key) const;  // present and not null

  // Integers may be written 5 or 5.0; 5.5, "5" and true are refused. The _or forms return the fallback, unchecked,
  // only when the field is absent or null: a wrong type or range is an error all the same.
  int64_t integer(std::string_view key, int64_t min, int64_t max) const;
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  double number(std::string_view key, double min, double max) const;
  double number_or(std::string_view key, double fallback, double min, double max) const;
  bool boolean(std::string_view key) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string string(std::string_view key) const;
  std::string string_or(std::string_view key, std::string fallback) const;

  std::vector<int64_t> integers(std::string_view key, int64_t min, int64_t max) const;  // an array of integers
  std::vector<std::string> strings(std::string_view key) const;                         // an array of strings
  // An array of `count` strings, each one of `allowed`.
  std::vector<std::string> words(std::string_view key, int64_t count,
                                 std::initializer_list<std::string_view> allowed) const;
  // An integer or an array of them (eos_token_id); empty when absent.
  std::vector<int64_t> integer_or_list(std::string_view key, int64_t min, int64_t max) const;

  JsonObject object(std::string_view key) const;
  std::optional<JsonObject> object_if(std::string_view key) const;  // nullopt when absent

  const boost::json::object& raw() const { return *object_; }

  // For checks of a caller's own: "FILE: field 'a.b': expected EXPECTED, found (the value)".
  [[noreturn]] void fail_field(std::string_view key, std::string_view expected) const;

 private:
  JsonObject(std::string file, std::string path, std::shared_ptr<const boost::json::object> object);

  const boost::json::value* find(std::string_view key) const;  // nullptr when absent or null
  const boost::json::value& get(std::string_view key, std::string_view expected) const;
  std::string field_path(std::string_view key) const;

  std::string file_;
  std::string path_;
  std::shared_ptr<const boost::json::object> object_;
};

}  // namespace weir
