// GGUF, the model files of ggml and llama.cpp (ggml's docs/gguf.md): versions 2 and 3, little-endian. Metadata, tensor
// table, then the tensors' bytes, each at a multiple of the alignment. A model may be split into files named
// X-00001-of-00003.gguf, of which the first has the metadata.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf_metadata.h"
#include "formats/mapped_file.h"
#include "formats/weight.h"

namespace weir {

// A type of tensor that this engine reads: blocks of `elements` weights in `bytes` bytes.
struct GgmlType {
  uint32_t id = 0;
  std::string_view name;
  int64_t elements = 1;
  int64_t bytes = 1;
  WeightFormat format = WeightFormat::kF32;
};
std::span<const GgmlType> ggml_types();
const GgmlType* find_ggml_type(uint32_t id);  // nullptr when it is not read
std::string ggml_type_text(uint32_t id);      // any id, for messages: "IQ2_XXS (type 16)"

// A view: name and data belong to the mapped file. Rows of ne[0] elements lie back to back, then ne[1] rows, and so on:
// a matrix [out, in] has ne = [in, out]. Dimensions beyond the file's rank are 1.
struct GgufTensor {
  std::string_view name;
  const GgmlType* type = nullptr;
  int64_t ne[4] = {1, 1, 1, 1};
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  const std::string* file = nullptr;  // path, for messages

  int64_t elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
};

struct GgufContents {
  uint32_t version = 0;
  int64_t alignment = 0;
  int64_t data_offset = 0;  // of the first tensor's data, from the start of the file
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // sorted by name
};

// One file. Everything points into `file` and to `name`, which must outlive it. Throws Error naming the file and the
// key, tensor or byte. Memory is taken only in proportion to what has been read, never to what the file announces.
GgufContents parse_gguf(std::span<const std::byte> file, const std::string& name);

// A model in one file or several.
class GgufFile {
 public:
  // `path`: the file, or any of a split model's. Maps all of them and checks their tables against each other; no
  // weights are read.
  static GgufFile open(const std::filesystem::path& path);
  // The one model in a folder: its only .gguf file, or the first of the only split model. nullopt when it has none;
  // Error when there are several.
  static std::optional<std::filesystem::path> find_in(const std::filesystem::path& folder);

  const std::string& path() const { return mappings_.front()->path(); }  // of the first file
  uint32_t version() const { return version_; }
  const GgufMetadata& metadata() const { return metadata_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }  // of all files, sorted by name
  const GgufTensor* find(std::string_view name) const;              // nullptr when absent
  int64_t files() const { return static_cast<int64_t>(mappings_.size()); }
  int64_t total_bytes() const;  // of the files

 private:
  GgufFile() = default;
  GgufContents add_file(const std::filesystem::path& path);
  void sort_tensors();

  std::vector<std::unique_ptr<const MappedFile>> mappings_;  // on the heap: tensors point to their paths
  uint32_t version_ = 0;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace weir
