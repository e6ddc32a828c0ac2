#include <algorithm>
#include <array>

#include "base/error.h"
#include "formats/gguf.h"

namespace weir {
namespace {

constexpr GgmlType type(uint32_t id, WeightFormat format) {
  const WeightBlock block = weight_block(format);
  return {id, weight_format_name(format), block.elements, block.bytes, format};
}

constexpr GgmlType kTypes[] = {
    type(0, WeightFormat::kF32),         type(1, WeightFormat::kF16),    type(2, WeightFormat::kQ4_0),
    type(3, WeightFormat::kQ4_1),        type(6, WeightFormat::kQ5_0),   type(7, WeightFormat::kQ5_1),
    type(8, WeightFormat::kQ8_0),        type(10, WeightFormat::kQ2_K),  type(11, WeightFormat::kQ3_K),
    type(12, WeightFormat::kQ4_K),       type(13, WeightFormat::kQ5_K),  type(14, WeightFormat::kQ6_K),
    type(20, WeightFormat::kIq4Nl),      type(23, WeightFormat::kIq4Xs), type(30, WeightFormat::kBf16),
    type(39, WeightFormat::kMxfp4Block), type(40, WeightFormat::kNvfp4),
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
