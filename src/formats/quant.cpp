#include "formats/quant.h"

#include <bit>
#include <cstring>
#include <limits>

#include "base/number.h"

namespace weir {
namespace {

// The bytes of a block by position.
struct Bytes {
  const std::byte* p;
  int operator[](int64_t i) const { return static_cast<int>(p[i]); }
  float half(int64_t i) const { return f16_to_f32(static_cast<uint16_t>((*this)[i] | (*this)[i + 1] << 8)); }
  int lo(int64_t i) const { return (*this)[i] & 15; }
  int hi(int64_t i) const { return (*this)[i] >> 4; }
  int bit(int64_t i, int b) const { return (*this)[i] >> b & 1; }
};

template <class Code>
void fill_codes(BlockCodes& c, int count, Code code) {
  for (int i = 0; i < count; ++i) c.code[i] = static_cast<int8_t>(code(i));
}
template <class Scale>
void fill_scales(BlockCodes& c, Scale scale) {
  for (int g = 0; g < 16; ++g) c.scale[g] = static_cast<int16_t>(scale(g));
}
template <class Min>
void fill_minima(BlockCodes& c, Min min) {
  for (int g = 0; g < 16; ++g) c.min[g] = static_cast<int16_t>(min(g));
}

// Element i of 32 in split-half order.
int split_nibble(Bytes b, int64_t qs, int i) { return i < 16 ? b.lo(qs + i) : b.hi(qs + i - 16); }
// Bit i of the little-endian u32 at qh, as bit 4.
int fifth_bit(Bytes b, int64_t qh, int i) { return b.bit(qh + i / 8, i % 8) << 4; }

// Q4_K and Q5_K: eight pairs of 6 bits in twelve bytes.
int k_scale(Bytes b, int64_t s, int j) { return j < 4 ? b[s + j] & 63 : b.lo(s + j + 4) | (b[s + j - 4] >> 6) << 4; }
int k_min(Bytes b, int64_t s, int j) { return j < 4 ? b[s + j + 4] & 63 : b.hi(s + j + 4) | (b[s + j] >> 6) << 4; }
// Q4_K and Q5_K: element i of 256; 64 elements share 32 bytes.
int k_nibble(Bytes b, int64_t qs, int i) {
  const int64_t at = qs + i / 64 * 32 + i % 32;
  return i / 32 % 2 == 0 ? b.lo(at) : b.hi(at);
}
// Q2_K and Q3_K: element i of 256; 128 elements share 32 bytes.
int k_two_bits(Bytes b, int64_t qs, int i) { return b[qs + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }

int q3_scale(Bytes b, int64_t s, int g) {
  const int low = g < 8 ? b.lo(s + g) : b.hi(s + g - 8);
  const int high = b[s + 8 + g % 4] >> (g / 4 * 2) & 3;
  return (low | high << 4) - 32;
}
int q6_code(Bytes b, int i) {
  const int n = i / 128, k = i / 32 % 4, l = i % 32;
  const int64_t at = 64 * n + 32 * (k % 2) + l;
  const int low = k < 2 ? b.lo(at) : b.hi(at);
  return (low | (b[128 + 32 * n + l] >> (2 * k) & 3) << 4) - 32;
}
int iq4_xs_scale(Bytes b, int j) {
  const int low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
  const int high = (b[2] | b[3] << 8) >> (2 * j) & 3;
  return (low | high << 4) - 32;
}

float e8m0_halved(int e) {  // 2^(e - 128)
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}
float ue4m3_halved(int code) {
  if (code == 0 || code == 0x7f) return 0;
  const int exponent = code >> 3 & 15;
  const auto mantissa = static_cast<float>(code & 7);
  if (exponent == 0) return mantissa * 0x1p-10f;
  return (1 + mantissa / 8) * std::bit_cast<float>(static_cast<uint32_t>(exponent - 8 + 127) << 23);
}

void dequantize_integers(WeightFormat format, const std::byte* block, int count, float* out) {
  BlockCodes c;
  decode_block(format, block, c);
  const bool minima = has_minima(format);
  for (int i = 0; i < count; ++i) {
    const float product = (c.d * static_cast<float>(c.scale[i / 16])) * static_cast<float>(c.code[i]);
    out[i] = minima ? product - c.dmin * static_cast<float>(c.min[i / 16]) : product;
  }
}

void dequantize_block(WeightFormat format, const std::byte* block, float* out) {
  const Bytes b{block};
  uint32_t word = 0;
  switch (format) {
    case WeightFormat::kF32:
      std::memcpy(&word, block, 4);
      out[0] = std::bit_cast<float>(word);
      return;
    case WeightFormat::kF16:
      out[0] = b.half(0);
      return;
    case WeightFormat::kBf16:
      out[0] = bf16_to_f32(static_cast<uint16_t>(b[0] | b[1] << 8));
      return;
    case WeightFormat::kMxfp4:
    case WeightFormat::kE4m3:
      return;  // not in one piece
    case WeightFormat::kMxfp4Block:
      for (int i = 0; i < 32; ++i) {
        out[i] = e8m0_halved(b[0]) * static_cast<float>(kE2m1Doubled[split_nibble(b, 1, i)]);
      }
      return;
    case WeightFormat::kNvfp4:
      for (int i = 0; i < 64; ++i) {
        const int s = i / 16, l = i % 16;
        const int code = l < 8 ? b.lo(4 + 8 * s + l) : b.hi(4 + 8 * s + l - 8);
        out[i] = ue4m3_halved(b[s]) * static_cast<float>(kE2m1Doubled[code]);
      }
      return;
    default:
      return dequantize_integers(format, block, static_cast<int>(weight_block(format).elements), out);
  }
}

}  // namespace

void decode_block(WeightFormat format, const std::byte* block, BlockCodes& c) {
  const Bytes b{block};
  c.dmin = 0;
  fill_scales(c, [](int) { return 1; });
  fill_minima(c, [&](int) { return has_minima(format) ? 1 : 0; });
  switch (format) {
    case WeightFormat::kQ4_0:
      c.d = b.half(0);
      return fill_codes(c, 32, [&](int i) { return split_nibble(b, 2, i) - 8; });
    case WeightFormat::kQ4_1:
      c.d = b.half(0);
      c.dmin = -b.half(2);
      return fill_codes(c, 32, [&](int i) { return split_nibble(b, 4, i); });
    case WeightFormat::kQ5_0:
      c.d = b.half(0);
      return fill_codes(c, 32, [&](int i) { return (split_nibble(b, 6, i) | fifth_bit(b, 2, i)) - 16; });
    case WeightFormat::kQ5_1:
      c.d = b.half(0);
      c.dmin = -b.half(2);
      return fill_codes(c, 32, [&](int i) { return split_nibble(b, 8, i) | fifth_bit(b, 4, i); });
    case WeightFormat::kQ8_0:
      c.d = b.half(0);
      return fill_codes(c, 32, [&](int i) { return b[2 + i]; });
    case WeightFormat::kIq4Nl:
      c.d = b.half(0);
      return fill_codes(c, 32, [&](int i) { return kIq4Values[split_nibble(b, 2, i)]; });
    case WeightFormat::kQ2_K:
      c.d = b.half(80);
      c.dmin = b.half(82);
      fill_scales(c, [&](int g) { return b.lo(g); });
      fill_minima(c, [&](int g) { return b.hi(g); });
      return fill_codes(c, 256, [&](int i) { return k_two_bits(b, 16, i); });
    case WeightFormat::kQ3_K:
      c.d = b.half(108);
      fill_scales(c, [&](int g) { return q3_scale(b, 96, g); });
      return fill_codes(c, 256, [&](int i) { return k_two_bits(b, 32, i) - (b.bit(i % 32, i / 32) == 1 ? 0 : 4); });
    case WeightFormat::kQ4_K:
      c.d = b.half(0);
      c.dmin = b.half(2);
      fill_scales(c, [&](int g) { return k_scale(b, 4, g / 2); });
      fill_minima(c, [&](int g) { return k_min(b, 4, g / 2); });
      return fill_codes(c, 256, [&](int i) { return k_nibble(b, 16, i); });
    case WeightFormat::kQ5_K:
      c.d = b.half(0);
      c.dmin = b.half(2);
      fill_scales(c, [&](int g) { return k_scale(b, 4, g / 2); });
      fill_minima(c, [&](int g) { return k_min(b, 4, g / 2); });
      return fill_codes(c, 256, [&](int i) { return k_nibble(b, 48, i) | b.bit(16 + i % 32, i / 32) << 4; });
    case WeightFormat::kQ6_K:
      c.d = b.half(208);
      fill_scales(c, [&](int g) { return static_cast<int8_t>(b[192 + g]); });
      return fill_codes(c, 256, [&](int i) { return q6_code(b, i); });
    case WeightFormat::kIq4Xs:
      c.d = b.half(0);
      fill_scales(c, [&](int g) { return iq4_xs_scale(b, g / 2); });
      return fill_codes(c, 256, [&](int i) { return kIq4Values[split_nibble(b, 8 + 16 * (i / 32), i % 32)]; });
    default:
      return;
  }
}

void dequantize_row(WeightFormat format, const std::byte* row, int64_t elements, float* out) {
  const WeightBlock block = weight_block(format);
  for (int64_t i = 0; i < elements; i += block.elements, row += block.bytes) dequantize_block(format, row, out + i);
}

float e4m3_to_f32(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude =
      exponent == 0
          ? static_cast<float>(mantissa) * 0x1p-9f
          : std::bit_cast<float>(static_cast<uint32_t>(exponent + 120) << 23 | static_cast<uint32_t>(mantissa) << 20);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

float e4m3_scale(const WeightView& weight, int64_t o, int64_t k) {
  const std::byte* row = weight.scales + (weight.scale_first + o) / weight.scale_rows * weight.scale_row_bytes;
  float scale = 0;
  dequantize_block(weight.scale_format, row + k / weight.scale_cols * weight_block(weight.scale_format).bytes, &scale);
  return scale;
}

void dequantize(const WeightView& weight, int64_t o, int64_t first, int64_t elements, float* out) {
  const std::byte* row = weight.data + o * weight.row_bytes + weight_row_bytes(weight.format, first);
  if (weight.format == WeightFormat::kE4m3) {
    for (int64_t i = 0; i < elements; ++i) {
      out[i] = e4m3_to_f32(static_cast<uint8_t>(row[i])) * e4m3_scale(weight, o, first + i);
    }
    return;
  }
  if (weight.format != WeightFormat::kMxfp4) return dequantize_row(weight.format, row, elements, out);
  const std::byte* scales = weight.scales + o * weight.scale_row_bytes + first / 32;
  for (int64_t i = 0; i < elements; ++i) {
    const int pair = static_cast<int>(row[i / 2]);
    out[i] = kE2m1[i % 2 == 0 ? pair & 15 : pair >> 4] * e8m0_to_f32(static_cast<uint8_t>(scales[i / 32]));
  }
}

}  // namespace weir
