// Bytes of GGUF files, right or wrong, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/gguf_metadata.h"

namespace weir::testing {

template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
inline std::string gguf_string(std::string_view text) { return raw<uint64_t>(text.size()) + std::string(text); }

// Values with their types, as they follow a key.
template <class T>
std::string gguf_value(GgufType type, T value) {
  return raw(static_cast<uint32_t>(type)) + raw(value);
}
inline std::string gguf_u32(uint32_t value) { return gguf_value(GgufType::kU32, value); }
inline std::string gguf_f32(float value) { return gguf_value(GgufType::kF32, value); }
inline std::string gguf_bool(bool value) { return gguf_value<uint8_t>(GgufType::kBool, value); }
inline std::string gguf_text(std::string_view text) {
  return raw(static_cast<uint32_t>(GgufType::kString)) + gguf_string(text);
}
// `elements`: already encoded, back to back.
inline std::string gguf_array(GgufType element, uint64_t count, std::string_view elements) {
  return raw(static_cast<uint32_t>(GgufType::kArray)) + raw(static_cast<uint32_t>(element)) + raw(count) +
         std::string(elements);
}
inline std::string gguf_texts(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += gguf_string(text);
  return gguf_array(GgufType::kString, texts.size(), all);
}
inline std::string gguf_i32s(const std::vector<int32_t>& values) {
  std::string all;
  for (int32_t value : values) all += raw(value);
  return gguf_array(GgufType::kI32, values.size(), all);
}

struct GgufBytes {
  struct RawTensor {
    std::string name;
    std::vector<int64_t> ne;
    uint32_t type = 0;
    std::string data;
    int64_t offset = -1;  // -1: after the one before
  };
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::pair<std::string, std::string>> keys;  // key, encoded value
  std::vector<RawTensor> tensors;
  std::optional<int64_t> key_count, tensor_count;  // else as many as there are
  uint64_t alignment = 32;                         // of the data; a key must say so too if it is another

  void set(const std::string& key, const std::string& value) {
    for (auto& [name, old] : keys) {
      if (name == key) {
        old = value;
        return;
      }
    }
    keys.emplace_back(key, value);
  }
  void erase(const std::string& key) {
    std::erase_if(keys, [&](const auto& entry) { return entry.first == key; });
  }
  RawTensor& tensor(const std::string& name) {
    for (RawTensor& t : tensors) {
      if (t.name == name) return t;
    }
    return tensors.emplace_back(RawTensor{name, {}, 0, {}, -1});
  }
  void erase_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const RawTensor& t) { return t.name == name; });
  }

  std::string text() const {
    std::string out = magic + raw(version);
    out += raw<int64_t>(tensor_count.value_or(static_cast<int64_t>(tensors.size())));
    out += raw<int64_t>(key_count.value_or(static_cast<int64_t>(keys.size())));
    for (const auto& [key, value] : keys) out += gguf_string(key) + value;
    std::string data;
    for (const RawTensor& t : tensors) {
      out += gguf_string(t.name) + raw(static_cast<uint32_t>(t.ne.size()));
      for (int64_t d : t.ne) out += raw(d);
      pad(data);
      out += raw(t.type) + raw<int64_t>(t.offset < 0 ? static_cast<int64_t>(data.size()) : t.offset);
      data += t.data;
    }
    pad(out);
    return out + data;
  }

 private:
  void pad(std::string& bytes) const { bytes.resize((bytes.size() + alignment - 1) / alignment * alignment); }
};

}  // namespace weir::testing
