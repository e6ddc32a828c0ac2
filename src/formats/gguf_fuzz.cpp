// Any bytes either parse or throw Error; the tensors of what parses lie inside the file, apart from each other, and
// every value can be read or says why not.
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "formats/gguf.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Action>
void try_it(Action action) {
  try {
    action();
  } catch (const weir::Error& error) {
    require(std::string_view(error.what()).starts_with("fuzz.gguf"));
  }
}

void read_values(const weir::GgufMetadata& m) {
  for (const weir::GgufField& field : m.fields()) {
    require(m.has(field.key));
    try_it([&] { m.integer(field.key, -1000, 1000); });
    try_it([&] { m.number_or(field.key, 0, -1e9, 1e9); });
    try_it([&] { m.boolean_or(field.key, true); });
    try_it([&] { m.string_or(field.key, ""); });
    try_it([&] { require(static_cast<int64_t>(m.strings(field.key).size()) == field.count); });
    try_it([&] { require(static_cast<int64_t>(m.integers(field.key, -1000, 1000).size()) == field.count); });
    try_it([&] { require(static_cast<int64_t>(m.floats(field.key).size()) == field.count); });
    try_it([&] { require(m.per_layer(field.key, 5, 0, 1000).size() == 5); });
    try_it([&] { m.fail_key(field.key, "nothing"); });
  }
  try_it([&] { m.integer("?", 0, 1); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string name = "fuzz.gguf";
  // Of exactly the right length, so that reading past it is seen.
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::vector<std::byte> file(bytes.begin(), bytes.end());
  try_it([&] {
    const weir::GgufContents contents = weir::parse_gguf(file, name);
    read_values(contents.metadata);
    const weir::GgufTensor* previous = nullptr;
    for (const weir::GgufTensor& t : contents.tensors) {
      require(t.data >= file.data() + contents.data_offset && t.data + t.bytes <= file.data() + file.size());
      require((t.data - file.data()) % contents.alignment == 0);
      require(t.bytes == t.elements() / t.type->elements * t.type->bytes);
      require(previous == nullptr || previous->name < t.name);
      require(!weir::ggml_type_text(t.type->id).empty());
      previous = &t;
    }
  });
  return 0;
}
