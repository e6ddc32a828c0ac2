// The tensors of a checkpoint, whichever file format they come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "formats/weight.h"

namespace weir {

// A view into a mapped file.
struct SourceTensor {
  std::string_view name;
  const std::string* file = nullptr;
  std::vector<int64_t> shape;          // outermost first: a matrix is [out, in]
  std::string_view type;               // as the file calls it
  std::optional<WeightFormat> format;  // none: nothing that weights are stored in
  const std::byte* data = nullptr;
  int64_t bytes = 0;

  int64_t elements() const;
};

// Tensors are numbered; names are those of the format.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const std::string& place() const = 0;  // folder or file, for messages
  virtual int64_t size() const = 0;
  virtual SourceTensor tensor(int64_t index) const = 0;
  virtual std::optional<int64_t> find(std::string_view name) const = 0;
  // GGUF drops dimensions of 1, safetensors keeps them.
  virtual bool keeps_ones() const = 0;
};

// What is read must outlive the source.
std::unique_ptr<TensorSource> tensor_source(const Checkpoint& checkpoint);
std::unique_ptr<TensorSource> tensor_source(const GgufFile& file);

}  // namespace weir
