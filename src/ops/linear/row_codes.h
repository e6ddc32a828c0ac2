// Rows of x quantised to 8 bits, for products in integers (docs/numerics.md, rule 2).
//
// A block of a row (32 elements for weights in blocks of 32, 256 for superblocks) becomes a scale d and codes q:
//
//   amax = largest |x|;  d = amax / 127;  q = x * (127 / amax) rounded to the nearest integer, ties to even
//
// Both divisions and the product are single FP32 operations. |q| is at most 127. A block with amax below 2^-100 counts
// as zeros (d = 0, q = 0); one with an infinity or NaN has d = NaN and q = 0, which makes every output of the row NaN.
// Coding is a function of the block alone, so rows stay pure.
//
// With q8, weights that have no integer product (F32, F16, BF16, MXFP4) take the values that the codes of blocks of 32
// stand for, x' = d * float(q), one rounding; the last block of a row may be shorter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu.h"
#include "formats/weight.h"

namespace weir {

// What a product computes with (docs/numerics.md, "Settings"): f32: every weight exact, x in FP32; auto: the integer
// formats with rows in 8-bit codes, all others as f32; q8: rows pass through 8-bit codes for every format.
enum class Activations : uint8_t { kF32, kAuto, kQ8 };

enum class RowCoding : uint8_t { kNone, kBlocks32, kBlocks256, kRounded };

// kNone: the product takes x as it is; kRounded: it takes FP32 rows x'; else it is a product of integers.
constexpr bool in_integers(RowCoding coding) {
  return coding == RowCoding::kBlocks32 || coding == RowCoding::kBlocks256;
}
RowCoding row_coding(WeightFormat format, Activations activations);

// Where the parts of a coded row lie, in bytes from its start. All parts start at multiples of 64 and are padded to
// them.
struct CodedRowLayout {
  int64_t blocks = 0;
  int64_t scales = 0;  // float d [blocks]; codes are first: int8 q [blocks * 32 or 256], in order
  int64_t sums = 0;    // kBlocks32: int32 [blocks], the sum of a block's q; kBlocks256: int16 [blocks * 16], of 16 q
  int64_t other_sums = 0;  // kBlocks32: the sums as float [blocks]; kBlocks256: int16 [blocks * 8], of 32 q
  int64_t bytes = 0;       // kRounded: float [elements] and nothing else
};

constexpr CodedRowLayout coded_row_layout(RowCoding coding, int64_t elements) {
  const auto padded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  CodedRowLayout layout;
  if (!in_integers(coding)) {
    layout.bytes = padded(elements * 4);
    return layout;
  }
  layout.blocks = elements / (coding == RowCoding::kBlocks32 ? 32 : 256);
  layout.scales = padded(elements);
  layout.sums = layout.scales + padded(layout.blocks * 4);
  layout.other_sums = layout.sums + padded(layout.blocks * (coding == RowCoding::kBlocks32 ? 4 : 32));
  layout.bytes = layout.other_sums + padded(layout.blocks * (coding == RowCoding::kBlocks32 ? 4 : 16));
  return layout;
}

// Rows of one coding, row_bytes apart.
struct CodedRows {
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;
};

// One row. `coded`: coded_row_layout().bytes, 64-byte aligned. elements: a multiple of the block.
using EncodeRowKernel = void (*)(RowCoding coding, const float* x, int64_t elements, std::byte* coded);
EncodeRowKernel encode_row_kernel(KernelSet set);

}  // namespace weir
