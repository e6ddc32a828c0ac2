#include <algorithm>
#include <array>

#include "base/error.h"
#include "formats/gguf.h"

namespace weir {
namespace {

constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4, WeightFormat::kF32},
    {1, "F16", 1, 2, WeightFormat::kF16},
    {30, "BF16", 1, 2, WeightFormat::kBf16},
};

// By id; "" for ids that were given up.
constexpr std::array<std::string_view, 43> kNames = {
    "F32",   "F16",    "Q4_0",  "Q4_1", "",     "",        "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16",  "",       "",
    "",      "TQ1_0",  "TQ2_0", "",     "",     "",        "MXFP4",  "NVFP4",   "Q1_0",  "Q2_0"};

}  // namespace

std::span<const GgmlType> ggml_types() { return kTypes; }

const GgmlType* find_ggml_type(uint32_t id) {
  const auto* found = std::ranges::find(kTypes, id, &GgmlType::id);
  return found == std::end(kTypes) ? nullptr : found;
}

std::string ggml_type_text(uint32_t id) {
  if (id >= kNames.size()) return concat("unknown type ", id);
  if (kNames[id].empty()) return concat("type ", id, ", which GGUF has given up");
  return concat(kNames[id], " (type ", id, ")");
}

}  // namespace weir
