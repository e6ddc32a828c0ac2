// One file of the safetensors format (https://github.com/huggingface/safetensors, "Format"): u64 little-endian header
// length N, N bytes of JSON { name: {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {string: string}
// }, then the data; offsets count from its first byte. Tensors are row-major and little-endian, and cover the data
// without overlap, hole or rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/mapped_file.h"

namespace weir {

enum class Dtype : uint8_t {
  kF64,
  kF32,
  kF16,
  kBf16,
  kF8E4m3,
  kF8E5m2,
  kF8E8m0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};
std::string_view dtype_name(Dtype dtype);  // as in the file: "BF16"
int64_t dtype_bytes(Dtype dtype);          // of one element

// A view: the data belongs to the mapped file. It starts at any byte (headers of old files are not padded), so elements
// wider than a byte are to be read with unaligned loads.
struct Tensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // at most 8 dimensions; empty for a scalar
  const std::byte* data = nullptr;
  int64_t bytes = 0;                  // elements() * dtype_bytes(dtype)
  const std::string* file = nullptr;  // path, for messages

  int64_t elements() const { return bytes / dtype_bytes(dtype); }
};

std::string shape_text(std::span<const int64_t> shape);  // "[512, 64]"

struct SafetensorsContents {
  std::vector<Tensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
};

// Tensors point into `file`, and their `file` to `name`: both must outlive them. Throws Error with the name, the
// tensor, and what is wrong with it; nothing of the data is read.
SafetensorsContents parse_safetensors(std::span<const std::byte> file, const std::string& name);

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return mapping_->path(); }
  const std::vector<Tensor>& tensors() const { return contents_.tensors; }  // sorted by name
  const std::map<std::string, std::string>& metadata() const { return contents_.metadata; }
  int64_t bytes() const { return static_cast<int64_t>(mapping_->bytes().size()); }
  const MappedFile& mapping() const { return *mapping_; }

 private:
  SafetensorsFile(std::unique_ptr<const MappedFile> mapping, SafetensorsContents contents)
      : mapping_(std::move(mapping)), contents_(std::move(contents)) {}

  std::unique_ptr<const MappedFile> mapping_;  // on the heap: tensors point to its path
  SafetensorsContents contents_;
};

}  // namespace weir
