// Writes variations of fixture models: a folder as tensors in memory, changed, and written back as one file.
#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace weir::test {

struct RawTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

struct ModelFiles {
  boost::json::object config;
  boost::json::object generation_config;
  std::map<std::string, RawTensor> tensors;

  static ModelFiles read(const std::string& folder) {
    const Checkpoint checkpoint = Checkpoint::open(folder);
    ModelFiles files;
    files.config = checkpoint.config().raw();
    if (checkpoint.generation_config() != nullptr) files.generation_config = checkpoint.generation_config()->raw();
    for (const Tensor& t : checkpoint.tensors()) {
      files.tensors[t.name] = {std::string(dtype_name(t.dtype)), t.shape, {t.data, t.data + t.bytes}};
    }
    return files;
  }

  // The text part of the configuration.
  boost::json::object& text_config() {
    boost::json::value* nested = config.if_contains("text_config");
    return nested != nullptr ? nested->as_object() : config;
  }

  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << boost::json::serialize(config);
    if (!generation_config.empty())
      std::ofstream(folder / "generation_config.json") << boost::json::serialize(generation_config);
    boost::json::object header;
    int64_t offset = 0;
    for (const auto& [name, t] : tensors) {
      const auto bytes = static_cast<int64_t>(t.data.size());
      header[name] = boost::json::object{{"dtype", t.dtype},
                                         {"shape", boost::json::array(t.shape.begin(), t.shape.end())},
                                         {"data_offsets", boost::json::array{offset, offset + bytes}}};
      offset += bytes;
    }
    std::string text = boost::json::serialize(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t size = text.size();
    std::ofstream file(folder / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), 8);
    file << text;
    for (const auto& [name, t] : tensors) {
      file.write(reinterpret_cast<const char*>(t.data.data()), static_cast<std::streamsize>(t.data.size()));
    }
  }
};

}  // namespace weir::test
