// The F32 and BF16 tensors of a small safetensors file, for tests: 8 bytes of header length (little-endian), a JSON
// header, raw data. No checks beyond what keeps a test from reading nonsense; the engine's reader is
// src/formats/safetensors.h.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/number.h"

namespace weir::test {

struct TinyTensor {
  std::vector<int64_t> shape;
  std::vector<float> data;
};

inline std::map<std::string, TinyTensor> load_tiny_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t header = 0;
  if (bytes.size() < sizeof header) throw std::runtime_error(path + ": cannot be read");
  std::memcpy(&header, bytes.data(), sizeof header);
  const boost::json::value json = boost::json::parse(std::string_view(bytes).substr(8, header));
  std::map<std::string, TinyTensor> tensors;
  for (const auto& [name, entry] : json.as_object()) {
    if (name == "__metadata__") continue;
    TinyTensor tensor;
    for (const auto& size : entry.at("shape").as_array()) tensor.shape.push_back(size.to_number<int64_t>());
    const auto& offsets = entry.at("data_offsets").as_array();
    const size_t begin = 8 + header + offsets[0].to_number<size_t>();
    const size_t end = 8 + header + offsets[1].to_number<size_t>();
    if (end > bytes.size() || begin > end) throw std::runtime_error(path + ": a tensor lies outside the file");
    if (entry.at("dtype").as_string() == "F32") {
      tensor.data.resize((end - begin) / 4);
      std::memcpy(tensor.data.data(), bytes.data() + begin, end - begin);
    } else if (entry.at("dtype").as_string() == "BF16") {
      for (size_t at = begin; at < end; at += 2) {
        uint16_t half = 0;
        std::memcpy(&half, bytes.data() + at, sizeof half);
        tensor.data.push_back(bf16_to_f32(half));
      }
    } else {
      continue;
    }
    tensors.emplace(std::string(name), std::move(tensor));
  }
  return tensors;
}

}  // namespace weir::test
