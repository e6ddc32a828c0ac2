#include "ops/linear/row_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "formats/quant.h"

namespace weir {

RowCoding row_coding(WeightFormat format, Activations activations) {
  if (activations == Activations::kF32) return RowCoding::kNone;
  if (!is_integer_format(format)) return activations == Activations::kQ8 ? RowCoding::kRounded : RowCoding::kNone;
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
  const float amax = std::bit_cast<float>(largest);
  const bool finite = largest < 0x7f800000u;
  const bool zeros = !finite || amax < 0x1p-100f;
  const float inverse = 127.f / amax;
  for (int64_t i = 0; i < size; ++i) q[i] = zeros ? int8_t{0} : static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  return !finite ? std::numeric_limits<float>::quiet_NaN() : zeros ? 0.f : amax / 127.f;
}

int32_t sum(const int8_t* q, int64_t count) {
  int32_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += q[i];
  return total;
}

void round_row(const float* x, int64_t elements, float* rounded) {
  int8_t q[32];
  for (int64_t k = 0; k < elements; k += 32) {
    const int64_t size = std::min<int64_t>(32, elements - k);
    const float d = encode_block(x + k, size, q);
    for (int64_t i = 0; i < size; ++i) rounded[k + i] = d * static_cast<float>(q[i]);
  }
}

}  // namespace

void encode_row(RowCoding coding, const float* x, int64_t elements, std::byte* coded) {
  if (coding == RowCoding::kRounded) return round_row(x, elements, reinterpret_cast<float*>(coded));
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
