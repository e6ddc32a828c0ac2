// A weight matrix as it lies in a file: [out, in], y = W x. Nothing is owned; the file stays mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weir {

// Values are stable only within a build. Block layouts of the GGUF formats: quant.h.
enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBf16,
  kMxfp4,  // split layout of compressed-tensors: packed E2M1 nibbles (low nibble = even element) and E8M0 scales per 32
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4Block,  // GGUF's MXFP4: blocks of 17 bytes, scale first
  kNvfp4,       // decoded by references only
  kE4m3,        // FP8: one byte an element, 1-4-3 bits without infinities (0x7f and 0xff: NaN); scales lie elsewhere
};

struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  int64_t out = 0;
  int64_t in = 0;
  const std::byte* data = nullptr;    // row o starts at o * row_bytes
  int64_t row_bytes = 0;
  const std::byte* scales = nullptr;  // kMxfp4: row o at o * scale_row_bytes, one byte per 32 elements
  int64_t scale_row_bytes = 0;
  // kE4m3: element (o, k) times scale ((scale_first + o) / scale_rows, k / scale_cols) of the grid at `scales`, rounded
  // to FP32. Grid rows lie scale_row_bytes apart; scales are kF32, kF16 or kBf16.
  WeightFormat scale_format = WeightFormat::kF32;
  int64_t scale_rows = 1;
  int64_t scale_cols = 1;
  int64_t scale_first = 0;

  int64_t bytes() const {
    return out * row_bytes + ((scale_first + out - 1) / scale_rows - scale_first / scale_rows + 1) * scale_row_bytes;
  }
  bool empty() const { return data == nullptr; }

  // Rows [begin, begin + count) as a matrix of its own.
  WeightView rows(int64_t begin, int64_t count) const {
    WeightView part = *this;
    part.out = count;
    part.data += begin * row_bytes;
    part.scale_first += begin;
    if (scales != nullptr) {
      part.scales += part.scale_first / scale_rows * scale_row_bytes;
      part.scale_first %= scale_rows;
    }
    return part;
  }
};

// A row is a whole number of blocks. For kMxfp4: 32 elements and the 16 bytes of their nibbles; scales lie elsewhere.
struct WeightBlock {
  int64_t elements = 1;
  int64_t bytes = 0;
};

constexpr WeightBlock weight_block(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return {1, 4};
    case WeightFormat::kF16: return {1, 2};
    case WeightFormat::kBf16: return {1, 2};
    case WeightFormat::kMxfp4: return {32, 16};
    case WeightFormat::kQ4_0: return {32, 18};
    case WeightFormat::kQ4_1: return {32, 20};
    case WeightFormat::kQ5_0: return {32, 22};
    case WeightFormat::kQ5_1: return {32, 24};
    case WeightFormat::kQ8_0: return {32, 34};
    case WeightFormat::kQ2_K: return {256, 84};
    case WeightFormat::kQ3_K: return {256, 110};
    case WeightFormat::kQ4_K: return {256, 144};
    case WeightFormat::kQ5_K: return {256, 176};
    case WeightFormat::kQ6_K: return {256, 210};
    case WeightFormat::kIq4Nl: return {32, 18};
    case WeightFormat::kIq4Xs: return {256, 136};
    case WeightFormat::kMxfp4Block: return {32, 17};
    case WeightFormat::kNvfp4: return {64, 36};
    case WeightFormat::kE4m3: return {1, 1};
  }
  return {};
}

// Bytes of `elements` elements, a multiple of the block's.
constexpr int64_t weight_row_bytes(WeightFormat format, int64_t elements) {
  const WeightBlock block = weight_block(format);
  return elements / block.elements * block.bytes;
}

constexpr std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return "F32";
    case WeightFormat::kF16: return "F16";
    case WeightFormat::kBf16: return "BF16";
    case WeightFormat::kMxfp4: return "MXFP4";
    case WeightFormat::kQ4_0: return "Q4_0";
    case WeightFormat::kQ4_1: return "Q4_1";
    case WeightFormat::kQ5_0: return "Q5_0";
    case WeightFormat::kQ5_1: return "Q5_1";
    case WeightFormat::kQ8_0: return "Q8_0";
    case WeightFormat::kQ2_K: return "Q2_K";
    case WeightFormat::kQ3_K: return "Q3_K";
    case WeightFormat::kQ4_K: return "Q4_K";
    case WeightFormat::kQ5_K: return "Q5_K";
    case WeightFormat::kQ6_K: return "Q6_K";
    case WeightFormat::kIq4Nl: return "IQ4_NL";
    case WeightFormat::kIq4Xs: return "IQ4_XS";
    case WeightFormat::kMxfp4Block: return "MXFP4";
    case WeightFormat::kNvfp4: return "NVFP4";
    case WeightFormat::kE4m3: return "E4M3";
  }
  return "?";
}

}  // namespace weir
