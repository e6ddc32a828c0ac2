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
#include "formats/weight.h"

namespace weir {

// Makes the tensors of a model of which there is only a configuration. Names are those of published checkpoints.
class TensorMaker {
 public:
  virtual ~TensorMaker() = default;
  virtual WeightView matrix(std::string_view name, int64_t out, int64_t in) = 0;
  virtual std::vector<float> floats(std::string_view name, int64_t count) = 0;
  virtual int64_t total_bytes() const = 0;
};

class Checkpoint {
 public:
  // A configuration, and weights that `maker` makes when they are asked for.
  static Checkpoint generated(const std::filesystem::path& config, std::shared_ptr<TensorMaker> maker);

  // Maps every file and checks every header; no weights are read. Throws Error naming the file for anything wrong,
  // including an index that disagrees with its shards in either direction.
  static Checkpoint open(const std::filesystem::path& folder);

  const std::string& folder() const { return folder_; }
  const JsonObject& config() const { return config_; }
  const JsonObject* generation_config() const { return generation_config_ ? &*generation_config_ : nullptr; }

  TensorMaker* maker() const { return maker_.get(); }           // nullptr for files
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
  std::shared_ptr<TensorMaker> maker_;
};

}  // namespace weir
