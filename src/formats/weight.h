// A weight matrix as it lies in a file: [out, in], y = W x. Nothing is owned; the file stays mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weir {

enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBf16,
  kMxfp4,  // split layout of compressed-tensors: packed E2M1 nibbles (low nibble = even element) and E8M0 scales per 32
};

struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  int64_t out = 0;
  int64_t in = 0;
  const std::byte* data = nullptr;    // row o starts at o * row_bytes
  int64_t row_bytes = 0;
  const std::byte* scales = nullptr;  // kMxfp4: row o at o * scale_row_bytes, one byte per 32 elements
  int64_t scale_row_bytes = 0;

  int64_t bytes() const { return out * (row_bytes + scale_row_bytes); }
  bool empty() const { return data == nullptr; }
};

inline std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return "F32";
    case WeightFormat::kF16: return "F16";
    case WeightFormat::kBf16: return "BF16";
    case WeightFormat::kMxfp4: return "MXFP4";
  }
  return "?";
}

}  // namespace weir
