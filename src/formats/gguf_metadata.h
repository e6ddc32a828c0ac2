// The key/value part of a GGUF file (ggml's docs/gguf.md), with checked, typed access that names file and key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

// As in the file.
enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
std::string_view gguf_type_name(GgufType type);

// A value as it lies in the file: checked to be there, not yet decoded.
struct GgufField {
  std::string_view key;
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array; never an array itself
  int64_t count = 1;                 // elements of an array; bytes of a string
  const std::byte* data = nullptr;   // elements back to back (strings: u64 length, bytes); of a string: its bytes
};

// Views into a mapped file: strings are valid as long as it is mapped. Each accessor throws Error
// "FILE: key 'a.b': expected WHAT, found WHAT".
class GgufMetadata {
 public:
  GgufMetadata() = default;
  // `fields` sorted by key, no key twice.
  GgufMetadata(std::string file, std::vector<GgufField> fields) : file_(std::move(file)), fields_(std::move(fields)) {}

  const std::string& file() const { return file_; }
  std::span<const GgufField> fields() const { return fields_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Integers may be written in any width, numbers in any integer or float type. The _or forms return the fallback,
  // unchecked, only when the key is absent.
  int64_t integer(std::string_view key, int64_t min, int64_t max) const;
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  double number(std::string_view key, double min, double max) const;
  double number_or(std::string_view key, double fallback, double min, double max) const;
  bool boolean(std::string_view key) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string_view string(std::string_view key) const;
  std::string_view string_or(std::string_view key, std::string_view fallback) const;

  std::vector<std::string_view> strings(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key, int64_t min, int64_t max) const;  // booleans count as 0 and 1
  std::vector<float> floats(std::string_view key) const;
  // One integer for all of `layers`, or an array with one each.
  std::vector<int64_t> per_layer(std::string_view key, int64_t layers, int64_t min, int64_t max) const;

  // For checks of a caller's own: "FILE: key 'a.b': expected EXPECTED, found (the value)".
  [[noreturn]] void fail_key(std::string_view key, std::string_view expected) const;

 private:
  const GgufField* find(std::string_view key) const;  // nullptr when absent
  const GgufField& get(std::string_view key, std::string_view expected) const;
  const GgufField& array(std::string_view key, std::string_view expected) const;

  std::string file_;
  std::vector<GgufField> fields_;
};

}  // namespace weir
