#include "ops/linear/row_codes.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/quant.h"

namespace weir {

RowCoding row_coding(WeightFormat format, Activations activations) {
  if (activations == Activations::kF32 || !is_integer_format(format)) return RowCoding::kNone;
  return weight_block(format).elements == 32 ? RowCoding::kBlocks32 : RowCoding::kBlocks256;
}

namespace reference {
namespace {

// Codes of `size` elements; returns d.
float encode_block(const float* x, int64_t size, int8_t* q) {
  uint32_t largest = 0;  // bits of |x| order as integers, infinity and NaN above all
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  std::memset(q, 0, static_cast<size_t>(size));
  if (largest >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  const float amax = std::bit_cast<float>(largest);
  if (amax < 0x1p-100f) return 0;
  const float inverse = 127.f / amax;
  for (int64_t i = 0; i < size; ++i) q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  return amax / 127.f;
}

int32_t sum(const int8_t* q, int64_t count) {
  int32_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += q[i];
  return total;
}

}  // namespace

void encode_row(RowCoding coding, const float* x, int64_t elements, std::byte* coded) {
  const CodedRowLayout layout = coded_row_layout(coding, elements);
  int8_t* q = reinterpret_cast<int8_t*>(coded);
  float* scales = reinterpret_cast<float*>(coded + layout.scales);
  const int64_t size = coding == RowCoding::kBlocks32 ? 32 : 256;
  for (int64_t b = 0; b < layout.blocks; ++b) scales[b] = encode_block(x + b * size, size, q + b * size);
  if (coding == RowCoding::kBlocks32) {
    for (int64_t b = 0; b < layout.blocks; ++b) {
      const int32_t total = sum(q + b * 32, 32);
      reinterpret_cast<int32_t*>(coded + layout.sums)[b] = total;
      reinterpret_cast<float*>(coded + layout.other_sums)[b] = static_cast<float>(total);
    }
    return;
  }
  int16_t* of_16 = reinterpret_cast<int16_t*>(coded + layout.sums);
  int16_t* of_32 = reinterpret_cast<int16_t*>(coded + layout.other_sums);
  for (int64_t g = 0; g < elements / 16; ++g) of_16[g] = static_cast<int16_t>(sum(q + g * 16, 16));
  for (int64_t g = 0; g < elements / 32; ++g) of_32[g] = static_cast<int16_t>(sum(q + g * 32, 32));
}

}  // namespace reference

namespace avx2 {
void encode_row(RowCoding coding, const float* x, int64_t elements, std::byte* coded);
}
namespace avx512 {
void encode_row(RowCoding coding, const float* x, int64_t elements, std::byte* coded);
}

EncodeRowKernel encode_row_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::encode_row;
    case KernelSet::kAvx2:
      return avx2::encode_row;
    case KernelSet::kAvx512:
      return avx512::encode_row;
  }
  return reference::encode_row;
}

}  // namespace weir
