// A model folder as published on Hugging Face: config.json, generation_config.json (optional), and the weights in
// model.safetensors or in the shards that model.safetensors.index.json names (preferred when both are there).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "formats/safetensors.h"

namespace weir {

class Checkpoint {
 public:
  // Maps every file and checks every header; no weights are read. Throws Error naming the file for anything wrong,
  // including an index that disagrees with its shards in either direction.
  static Checkpoint open(const std::filesystem::path& folder);

  const std::string& folder() const { return folder_; }
  const JsonObject& config() const { return config_; }
  const JsonObject* generation_config() const { return generation_config_ ? &*generation_config_ : nullptr; }

  const Tensor* find(std::string_view name) const;              // nullptr when absent
  std::span<const Tensor> tensors() const { return tensors_; }  // sorted by name; valid while the Checkpoint lives

  struct File {
    std::string path;
    int64_t bytes = 0;
    int64_t tensors = 0;
  };
  std::span<const File> files() const { return files_; }  // of weights, in order of name
  int64_t total_bytes() const;                            // of those files

 private:
  Checkpoint(std::string folder, JsonObject config) : folder_(std::move(folder)), config_(std::move(config)) {}

  void add_file(const std::string& path);
  void sort_tensors();
  void check_index(const JsonObject& index) const;

  std::string folder_;
  JsonObject config_;
  std::optional<JsonObject> generation_config_;
  std::vector<std::unique_ptr<const MappedFile>> mappings_;  // on the heap: tensors point to the data and the path
  std::vector<Tensor> tensors_;
  std::vector<File> files_;
};

}  // namespace weir
