// Reads the tokenizer of a vocabulary-only GGUF v3 file: just enough for the fixtures of tests.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "formats/mapped_file.h"
#include "text/tokenizer.h"

namespace weir::test {

class GgufTokenizerFile {
 public:
  static GgufTokenizerData read(const std::string& path) {
    const MappedFile file = MappedFile::open(path);
    GgufTokenizerFile reader({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
    reader.data_.file = path;
    reader.read_all();
    return std::move(reader.data_);
  }

 private:
  explicit GgufTokenizerFile(std::string_view bytes) : bytes_(bytes) {}

  enum Type : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

  template <class T>
  T take() {
    T value;
    if (bytes_.size() < sizeof value) fail("GGUF fixture is too short");
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  std::string take_string() {
    const auto length = take<uint64_t>();
    std::string text(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
    return text;
  }
  // A number as double, or nothing.
  double take_number(uint32_t type) {
    switch (type) {
      case kU8:
        return take<uint8_t>();
      case kI8:
        return take<int8_t>();
      case kU16:
        return take<uint16_t>();
      case kI16:
        return take<int16_t>();
      case kU32:
        return take<uint32_t>();
      case kI32:
        return take<int32_t>();
      case kF32:
        return take<float>();
      case kBool:
        return take<uint8_t>();
      case kU64:
        return static_cast<double>(take<uint64_t>());
      case kI64:
        return static_cast<double>(take<int64_t>());
      case kF64:
        return take<double>();
      default:
        fail("GGUF fixture with type ", type);
    }
  }

  void read_all() {
    if (take<uint32_t>() != 0x46554747 || take<uint32_t>() != 3) fail("not a GGUF v3 fixture");
    take<uint64_t>();  // tensors
    const auto fields = take<uint64_t>();
    for (uint64_t i = 0; i < fields; ++i) {
      const std::string key = take_string();
      const auto type = take<uint32_t>();
      if (type == kString) {
        const std::string value = take_string();
        if (key == "tokenizer.ggml.model") data_.model = value;
        if (key == "tokenizer.ggml.pre") data_.pre = value;
      } else if (type == kArray) {
        const auto of = take<uint32_t>();
        const auto count = take<uint64_t>();
        for (uint64_t n = 0; n < count; ++n) {
          if (of == kString) {
            std::string value = take_string();
            if (key == "tokenizer.ggml.tokens")
              data_.tokens.push_back(std::move(value));
            else if (key == "tokenizer.ggml.merges")
              data_.merges.push_back(std::move(value));
          } else {
            const double value = take_number(of);
            if (key == "tokenizer.ggml.scores") data_.scores.push_back(static_cast<float>(value));
            if (key == "tokenizer.ggml.token_type") data_.types.push_back(static_cast<int32_t>(value));
          }
        }
      } else {
        const double value = take_number(type);
        const auto id = static_cast<int64_t>(value);
        if (key == "tokenizer.ggml.bos_token_id") data_.bos = id;
        if (key == "tokenizer.ggml.eos_token_id") data_.eos = id;
        if (key == "tokenizer.ggml.add_bos_token") data_.add_bos = value != 0;
        if (key == "tokenizer.ggml.add_eos_token") data_.add_eos = value != 0;
        if (key == "tokenizer.ggml.add_space_prefix") data_.add_space_prefix = value != 0;
      }
    }
  }

  std::string_view bytes_;
  GgufTokenizerData data_;
};

}  // namespace weir::test
