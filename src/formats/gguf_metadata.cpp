#include "formats/gguf_metadata.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace weir {
namespace {

constexpr std::array<std::string_view, 13> kTypeNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                         "bool", "string", "array", "u64", "i64", "f64"};

template <class T>
T at(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

// Nothing where the value is no integer, or none that fits.
std::optional<int64_t> integer_at(GgufType type, const std::byte* data, int64_t i) {
  switch (type) {
    case GgufType::kU8:
      return at<uint8_t>(data, i);
    case GgufType::kI8:
      return at<int8_t>(data, i);
    case GgufType::kU16:
      return at<uint16_t>(data, i);
    case GgufType::kI16:
      return at<int16_t>(data, i);
    case GgufType::kU32:
      return at<uint32_t>(data, i);
    case GgufType::kI32:
      return at<int32_t>(data, i);
    case GgufType::kI64:
      return at<int64_t>(data, i);
    case GgufType::kU64: {
      const auto value = at<uint64_t>(data, i);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> number_at(GgufType type, const std::byte* data, int64_t i) {
  if (type == GgufType::kF32) return at<float>(data, i);
  if (type == GgufType::kF64) return at<double>(data, i);
  if (const std::optional<int64_t> value = integer_at(type, data, i)) return static_cast<double>(*value);
  return std::nullopt;
}

std::string value_text(const GgufField& field) {
  switch (field.type) {
    case GgufType::kString:
      return concat("string ",
                    printable({reinterpret_cast<const char*>(field.data), static_cast<size_t>(field.count)}));
    case GgufType::kArray:
      return concat("an array of ", field.count, " ", gguf_type_name(field.element));
    case GgufType::kBool:
      return at<uint8_t>(field.data, 0) != 0 ? "true" : "false";
    case GgufType::kU64:
      return concat(at<uint64_t>(field.data, 0));
    default:
      if (const std::optional<int64_t> value = integer_at(field.type, field.data, 0)) return concat(*value);
      return concat(number_at(field.type, field.data, 0).value_or(0));
  }
}

std::string range_text(std::string_view what, auto min, auto max) { return concat(what, " in [", min, ", ", max, "]"); }

}  // namespace

std::string_view gguf_type_name(GgufType type) { return kTypeNames[static_cast<size_t>(type)]; }

const GgufField* GgufMetadata::find(std::string_view key) const {
  const auto found = std::ranges::lower_bound(fields_, key, {}, &GgufField::key);
  return found != fields_.end() && found->key == key ? &*found : nullptr;
}

const GgufField& GgufMetadata::get(std::string_view key, std::string_view expected) const {
  const GgufField* field = find(key);
  if (field == nullptr) fail(file_, ": key ", printable(key), ": expected ", expected, ", found no such key");
  return *field;
}

void GgufMetadata::fail_key(std::string_view key, std::string_view expected) const {
  const GgufField& field = get(key, expected);
  fail(file_, ": key ", printable(key), ": expected ", expected, ", found ", value_text(field));
}

int64_t GgufMetadata::integer(std::string_view key, int64_t min, int64_t max) const {
  const std::string expected = range_text("an integer", min, max);
  const GgufField& field = get(key, expected);
  const std::optional<int64_t> value = integer_at(field.type, field.data, 0);
  if (!value || *value < min || *value > max) fail_key(key, expected);
  return *value;
}

int64_t GgufMetadata::integer_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double GgufMetadata::number(std::string_view key, double min, double max) const {
  const std::string expected = range_text("a number", min, max);
  const GgufField& field = get(key, expected);
  const std::optional<double> value = number_at(field.type, field.data, 0);
  if (!value || !(*value >= min && *value <= max)) fail_key(key, expected);  // a NaN is in no range
  return *value;
}

double GgufMetadata::number_or(std::string_view key, double fallback, double min, double max) const {
  return has(key) ? number(key, min, max) : fallback;
}

bool GgufMetadata::boolean(std::string_view key) const {
  const GgufField& field = get(key, "a boolean");
  if (field.type != GgufType::kBool) fail_key(key, "a boolean");
  return at<uint8_t>(field.data, 0) != 0;
}

bool GgufMetadata::boolean_or(std::string_view key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

std::string_view GgufMetadata::string(std::string_view key) const {
  const GgufField& field = get(key, "a string");
  if (field.type != GgufType::kString) fail_key(key, "a string");
  return {reinterpret_cast<const char*>(field.data), static_cast<size_t>(field.count)};
}

std::string_view GgufMetadata::string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? string(key) : fallback;
}

const GgufField& GgufMetadata::array(std::string_view key, std::string_view expected) const {
  const GgufField& field = get(key, expected);
  if (field.type != GgufType::kArray) fail_key(key, expected);
  return field;
}

std::vector<std::string_view> GgufMetadata::strings(std::string_view key) const {
  const GgufField& field = array(key, "an array of strings");
  if (field.element != GgufType::kString) fail_key(key, "an array of strings");
  std::vector<std::string_view> out;
  out.reserve(static_cast<size_t>(field.count));  // each takes 8 bytes of the file at least
  const std::byte* data = field.data;
  for (int64_t i = 0; i < field.count; ++i) {
    const auto length = at<uint64_t>(data, 0);
    data += sizeof length;
    out.emplace_back(reinterpret_cast<const char*>(data), length);
    data += length;
  }
  return out;
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key, int64_t min, int64_t max) const {
  const std::string expected = range_text("an array of integers", min, max);
  const GgufField& field = array(key, expected);
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(field.count));
  const GgufType element = field.element == GgufType::kBool ? GgufType::kU8 : field.element;
  for (int64_t i = 0; i < field.count; ++i) {
    if (element == GgufType::kString) fail_key(key, expected);
    const std::optional<int64_t> value = integer_at(element, field.data, i);
    if (!value || *value < min || *value > max) fail_key(key, concat(expected, " (element ", i, ")"));
    out.push_back(*value);
  }
  return out;
}

std::vector<float> GgufMetadata::floats(std::string_view key) const {
  const GgufField& field = array(key, "an array of f32");
  if (field.element != GgufType::kF32 && field.element != GgufType::kF64) fail_key(key, "an array of f32");
  std::vector<float> out;
  out.reserve(static_cast<size_t>(field.count));
  for (int64_t i = 0; i < field.count; ++i) {
    out.push_back(static_cast<float>(number_at(field.element, field.data, i).value_or(0)));
  }
  return out;
}

std::vector<int64_t> GgufMetadata::per_layer(std::string_view key, int64_t layers, int64_t min, int64_t max) const {
  const std::string expected = concat("an integer in [", min, ", ", max, "], or an array of ", layers, " of them");
  const GgufField& field = get(key, expected);
  if (field.type != GgufType::kArray) {
    return std::vector<int64_t>(static_cast<size_t>(layers), integer(key, min, max));
  }
  if (field.count != layers) fail_key(key, expected);
  return integers(key, min, max);
}

}  // namespace weir
