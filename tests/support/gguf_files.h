// Writes variations of fixture models in GGUF: a file in memory, changed, and written back.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "formats/gguf.h"
#include "formats/gguf_testing.h"

namespace weir::test {

// A field's type and value as they follow its key.
inline std::string gguf_encoded(const GgufField& field) {
  const auto bytes = [&](int64_t n) {
    return std::string(reinterpret_cast<const char*>(field.data), static_cast<size_t>(n));
  };
  const std::string type = testing::raw(static_cast<uint32_t>(field.type));
  const auto scalar_bytes = [](GgufType t) {
    switch (t) {
      case GgufType::kU8:
      case GgufType::kI8:
      case GgufType::kBool:
        return 1;
      case GgufType::kU16:
      case GgufType::kI16:
        return 2;
      case GgufType::kU64:
      case GgufType::kI64:
      case GgufType::kF64:
        return 8;
      default:
        return 4;
    }
  };
  if (field.type == GgufType::kString) return type + testing::gguf_string(bytes(field.count));
  if (field.type != GgufType::kArray) return type + bytes(scalar_bytes(field.type));
  const auto count = static_cast<uint64_t>(field.count);
  if (field.element != GgufType::kString) {
    return testing::gguf_array(field.element, count, bytes(field.count * scalar_bytes(field.element)));
  }
  std::string all;
  const std::byte* at = field.data;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t length;
    std::memcpy(&length, at, sizeof length);
    all += std::string(reinterpret_cast<const char*>(at), 8 + length);
    at += 8 + length;
  }
  return testing::gguf_array(field.element, count, all);
}

inline testing::GgufBytes read_gguf(const std::string& path) {
  const GgufFile file = GgufFile::open(path);
  testing::GgufBytes out;
  for (const GgufField& field : file.metadata().fields()) out.set(std::string(field.key), gguf_encoded(field));
  for (const GgufTensor& t : file.tensors()) {
    int rank = 4;
    while (rank > 1 && t.ne[rank - 1] == 1) --rank;
    out.tensors.push_back({std::string(t.name),
                           {t.ne, t.ne + rank},
                           t.type->id,
                           std::string(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes)),
                           -1});
  }
  return out;
}

inline void write_gguf(const testing::GgufBytes& file, const std::filesystem::path& path) {
  const std::string text = file.text();
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace weir::test
