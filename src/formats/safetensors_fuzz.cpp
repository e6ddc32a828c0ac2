// Any bytes either parse or throw Error; the tensors of what parses cover its data exactly.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "formats/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void parse(std::span<const std::byte> file) {
  const std::string name = "fuzz.safetensors";
  weir::SafetensorsContents contents;
  try {
    contents = weir::parse_safetensors(file, name);
  } catch (const weir::Error&) {
    return;
  }
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  int64_t left = static_cast<int64_t>(file.size()) - 8 - static_cast<int64_t>(header);
  const weir::Tensor* previous = nullptr;
  for (const weir::Tensor& tensor : contents.tensors) {
    require(tensor.data >= file.data() + 8 + header);
    require(tensor.data + tensor.bytes <= file.data() + file.size());
    int64_t elements = 1;
    for (const int64_t dimension : tensor.shape) elements *= dimension;
    require(elements == tensor.elements() && tensor.bytes == elements * weir::dtype_bytes(tensor.dtype));
    require(previous == nullptr || previous->name < tensor.name);
    require(!weir::shape_text(tensor.shape).empty() && !weir::dtype_name(tensor.dtype).empty());
    left -= tensor.bytes;
    previous = &tensor;
  }
  require(left == 0);
}

}  // namespace

// Input that begins with '{' is a header without its length (up to the last '}') and data: edits of the JSON then need
// no matching edit of the length. Anything else is a whole file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::byte> file;  // of exactly the right length, so that reading past it is seen
  if (text.starts_with('{')) {
    const uint64_t header = text.rfind('}') == text.npos ? size : text.rfind('}') + 1;
    file.resize(sizeof header);
    std::memcpy(file.data(), &header, sizeof header);
  }
  const auto bytes = std::as_bytes(std::span(data, size));
  file.insert(file.end(), bytes.begin(), bytes.end());
  parse(file);
  return 0;
}
