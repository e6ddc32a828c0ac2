#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "formats/json.h"

namespace weir {
namespace {

using boost::json::value;

std::string describe(const value* found) {
  if (found == nullptr) return "nothing";
  switch (found->kind()) {
    case boost::json::kind::null:
      return "null";
    case boost::json::kind::bool_:
      return found->get_bool() ? "true" : "false";
    case boost::json::kind::int64:
      return concat(found->get_int64());
    case boost::json::kind::uint64:
      return concat(found->get_uint64());
    case boost::json::kind::double_:
      return concat(found->get_double());
    case boost::json::kind::string:
      return "string " + printable(found->get_string());
    case boost::json::kind::array:
      return concat("an array of ", found->get_array().size());
    case boost::json::kind::object:
      return concat("an object of ", found->get_object().size(), " fields");
  }
  return "?";
}

std::optional<int64_t> as_integer(const value& v) {
  if (const int64_t* integer = v.if_int64()) return *integer;
  // 2^63 is the first double beyond int64_t.
  if (const double* d = v.if_double(); d != nullptr && *d == std::trunc(*d) && *d >= -0x1p63 && *d < 0x1p63) {
    return static_cast<int64_t>(*d);
  }
  return std::nullopt;
}

std::optional<double> as_number(const value& v) {
  if (v.is_int64()) return static_cast<double>(v.get_int64());
  if (v.is_uint64()) return static_cast<double>(v.get_uint64());
  if (v.is_double() && std::isfinite(v.get_double())) return v.get_double();
  return std::nullopt;
}

// "an integer from 1 to 5"; a bound at the type's end is no bound.
template <class T>
std::string expected_range(std::string_view what, T min, T max) {
  const bool low = min > std::numeric_limits<T>::lowest();
  const bool high = max < std::numeric_limits<T>::max();
  if (low && high) return concat(what, " from ", min, " to ", max);
  if (low) return concat(what, " of at least ", min);
  if (high) return concat(what, " of at most ", max);
  return std::string(what);
}

}  // namespace

JsonObject::JsonObject(std::string file, std::string path, boost::json::object object)
    : JsonObject(std::move(file), std::move(path), std::make_shared<const boost::json::object>(std::move(object))) {}

JsonObject::JsonObject(std::string file, std::string path, std::shared_ptr<const boost::json::object> object)
    : file_(std::move(file)), path_(std::move(path)), object_(std::move(object)) {}

JsonObject JsonObject::read(const std::string& path, JsonLimits limits) {
  value root = read_json_file(path, limits);
  if (!root.is_object()) fail(path, ": expected a JSON object, found ", describe(&root));
  return JsonObject(path, "", std::move(root.get_object()));
}

bool JsonObject::has(std::string_view key) const { return find(key) != nullptr; }

int64_t JsonObject::integer(std::string_view key, int64_t min, int64_t max) const {
  const std::string expected = expected_range("an integer", min, max);
  const std::optional<int64_t> integer = as_integer(get(key, expected));
  if (!integer || *integer < min || *integer > max) fail_field(key, expected);
  return *integer;
}

int64_t JsonObject::integer_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double JsonObject::number(std::string_view key, double min, double max) const {
  const std::string expected = expected_range("a number", min, max);
  const std::optional<double> number = as_number(get(key, expected));
  if (!number || !(*number >= min && *number <= max)) fail_field(key, expected);
  return *number;
}

double JsonObject::number_or(std::string_view key, double fallback, double min, double max) const {
  return has(key) ? number(key, min, max) : fallback;
}

bool JsonObject::boolean(std::string_view key) const {
  const bool* found = get(key, "true or false").if_bool();
  if (found == nullptr) fail_field(key, "true or false");
  return *found;
}

bool JsonObject::boolean_or(std::string_view key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

std::string JsonObject::string(std::string_view key) const {
  const boost::json::string* found = get(key, "a string").if_string();
  if (found == nullptr) fail_field(key, "a string");
  return std::string(*found);
}

std::string JsonObject::string_or(std::string_view key, std::string fallback) const {
  return has(key) ? string(key) : fallback;
}

std::vector<int64_t> JsonObject::integers(std::string_view key, int64_t min, int64_t max) const {
  const boost::json::array* array = get(key, "an array of integers").if_array();
  if (array == nullptr) fail_field(key, "an array of integers");
  std::vector<int64_t> out;
  out.reserve(array->size());
  for (const value& element : *array) {
    const std::optional<int64_t> integer = as_integer(element);
    if (!integer || *integer < min || *integer > max) {
      fail(file_, ": field ", field_path(concat(key, "[", out.size(), "]")), ": expected ",
           expected_range("an integer", min, max), ", found ", describe(&element));
    }
    out.push_back(*integer);
  }
  return out;
}

std::vector<std::string> JsonObject::strings(std::string_view key) const {
  const boost::json::array* array = get(key, "an array of strings").if_array();
  if (array == nullptr) fail_field(key, "an array of strings");
  std::vector<std::string> out;
  out.reserve(array->size());
  for (const value& element : *array) {
    if (!element.is_string()) {
      fail(file_, ": field ", field_path(concat(key, "[", out.size(), "]")), ": expected a string, found ",
           describe(&element));
    }
    out.emplace_back(element.get_string());
  }
  return out;
}

std::vector<std::string> JsonObject::words(std::string_view key, int64_t count,
                                           std::initializer_list<std::string_view> allowed) const {
  std::vector<std::string> out = strings(key);
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::ranges::find(allowed, out[i]) != allowed.end()) continue;
    std::string expected;
    for (const std::string_view word : allowed) expected += concat(expected.empty() ? "'" : " or '", word, "'");
    fail(file_, ": field ", field_path(concat(key, "[", i, "]")), ": expected ", expected, ", found string ",
         printable(out[i]));
  }
  if (static_cast<int64_t>(out.size()) != count) fail_field(key, concat(count, " entries"));
  return out;
}

std::vector<int64_t> JsonObject::integer_or_list(std::string_view key, int64_t min, int64_t max) const {
  const value* found = find(key);
  if (found == nullptr) return {};
  if (found->is_array()) return integers(key, min, max);
  return {integer(key, min, max)};
}

JsonObject JsonObject::object(std::string_view key) const {
  const boost::json::object* found = get(key, "an object").if_object();
  if (found == nullptr) fail_field(key, "an object");
  std::string path = path_.empty() ? std::string(key) : concat(path_, ".", key);
  return JsonObject(file_, std::move(path), std::shared_ptr<const boost::json::object>(object_, found));
}

std::optional<JsonObject> JsonObject::object_if(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return object(key);
}

void JsonObject::fail_field(std::string_view key, std::string_view expected) const {
  fail(file_, ": field ", field_path(key), ": expected ", expected, ", found ", describe(object_->if_contains(key)));
}

const value* JsonObject::find(std::string_view key) const {
  const value* found = object_->if_contains(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const value& JsonObject::get(std::string_view key, std::string_view expected) const {
  const value* found = find(key);
  if (found == nullptr) fail_field(key, expected);
  return *found;
}

std::string JsonObject::field_path(std::string_view key) const {
  return printable(path_.empty() ? std::string(key) : concat(path_, ".", key), 200);
}

}  // namespace weir
