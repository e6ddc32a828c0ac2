// Elements of matrices as they lie in a file (formats/quant.h), decoded one at a time: the exact FP32 values that
// products of `--activations f32` use, and the integers that tiles are made of (linear_tiles.h).
#pragma once

#include "base/number.h"
#include "device/cuda/kernel.h"
#include "formats/quant.h"
#include "formats/weight.h"

namespace weir {

// A block of one of the integer formats (quant.h: BlockCodes), element by element.
struct IntegerBlock {
  WeightFormat format;
  const uint8_t* bytes;

  __device__ uint32_t half_bits(int at) const { return static_cast<uint32_t>(bytes[at] | bytes[at + 1] << 8); }
  __device__ float half(int at) const { return cuda::widen_f16(static_cast<uint16_t>(half_bits(at))); }
  __device__ int lo(int at) const { return bytes[at] & 15; }
  __device__ int hi(int at) const { return bytes[at] >> 4; }
  __device__ int bit(int at, int b) const { return bytes[at] >> b & 1; }
  __device__ int nibble(int qs, int i) const { return i < 16 ? lo(qs + i) : hi(qs + i - 16); }  // of 32
  __device__ int k_nibble(int qs, int i) const {                                                // Q4_K, Q5_K: of 256
    const int at = qs + i / 64 * 32 + i % 32;
    return i / 32 % 2 == 0 ? lo(at) : hi(at);
  }
  __device__ int two_bits(int qs, int i) const { return bytes[qs + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }

  __device__ int d_at() const;
  __device__ int dmin_at() const;  // of formats with minima: dmin, in Q4_1 and Q5_1 m
  __device__ float d() const { return half(d_at()); }
  __device__ float dmin() const {
    return format == WeightFormat::kQ4_1 || format == WeightFormat::kQ5_1 ? -half(2) : half(dmin_at());
  }
  __device__ int iq4_code(int i) const {
    return format == WeightFormat::kIq4Nl ? nibble(2, i) : nibble(8 + 16 * (i / 32), i % 32);
  }
  __device__ int code(int i) const;       // -128 .. 127
  __device__ int scale(int group) const;  // of sixteen elements
  __device__ int min(int group) const;
};

__device__ inline int IntegerBlock::d_at() const {
  switch (format) {
    case WeightFormat::kQ2_K:
      return 80;
    case WeightFormat::kQ3_K:
      return 108;
    case WeightFormat::kQ6_K:
      return 208;
    default:
      return 0;
  }
}

__device__ inline int IntegerBlock::dmin_at() const { return format == WeightFormat::kQ2_K ? 82 : 2; }

// Entry of kIq4Values.
__device__ inline int iq4_value(int code) {
  constexpr uint64_t kLow = 0xf6eaddcfbfad9881, kHigh = 0x7159453526190d01;
  return static_cast<int8_t>((code < 8 ? kLow : kHigh) >> (code % 8 * 8));
}

__device__ inline int IntegerBlock::code(int i) const {
  switch (format) {
    case WeightFormat::kQ4_0:
      return nibble(2, i) - 8;
    case WeightFormat::kQ4_1:
      return nibble(4, i);
    case WeightFormat::kQ5_0:
      return (nibble(6, i) | bit(2 + i / 8, i % 8) << 4) - 16;
    case WeightFormat::kQ5_1:
      return nibble(8, i) | bit(4 + i / 8, i % 8) << 4;
    case WeightFormat::kQ8_0:
      return static_cast<int8_t>(bytes[2 + i]);
    case WeightFormat::kIq4Nl:
    case WeightFormat::kIq4Xs:
      return iq4_value(iq4_code(i));
    case WeightFormat::kQ2_K:
      return two_bits(16, i);
    case WeightFormat::kQ3_K:
      return two_bits(32, i) - (bit(i % 32, i / 32) == 1 ? 0 : 4);
    case WeightFormat::kQ4_K:
      return k_nibble(16, i);
    case WeightFormat::kQ5_K:
      return k_nibble(48, i) | bit(16 + i % 32, i / 32) << 4;
    case WeightFormat::kQ6_K: {
      const int n = i / 128, k = i / 32 % 4, l = i % 32;
      const int at = 64 * n + 32 * (k % 2) + l;
      return ((k < 2 ? lo(at) : hi(at)) | (bytes[128 + 32 * n + l] >> (2 * k) & 3) << 4) - 32;
    }
    default:
      return 0;
  }
}

__device__ inline int IntegerBlock::scale(int group) const {
  const int j = group / 2;
  switch (format) {
    case WeightFormat::kQ2_K:
      return lo(group);
    case WeightFormat::kQ3_K: {
      const int low = group < 8 ? lo(96 + group) : hi(96 + group - 8);
      return (low | (bytes[104 + group % 4] >> (group / 4 * 2) & 3) << 4) - 32;
    }
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return j < 4 ? bytes[4 + j] & 63 : lo(4 + j + 4) | (bytes[4 + j - 4] >> 6) << 4;
    case WeightFormat::kQ6_K:
      return static_cast<int8_t>(bytes[192 + group]);
    case WeightFormat::kIq4Xs: {
      const int low = bytes[4 + j / 2] >> (4 * (j % 2)) & 15;
      return (low | ((bytes[2] | bytes[3] << 8) >> (2 * j) & 3) << 4) - 32;
    }
    default:
      return 1;
  }
}

__device__ inline int IntegerBlock::min(int group) const {
  const int j = group / 2;
  switch (format) {
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
      return 1;
    case WeightFormat::kQ2_K:
      return hi(group);
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return j < 4 ? bytes[4 + j + 4] & 63 : hi(4 + j + 4) | (bytes[4 + j] >> 6) << 4;
    default:
      return 0;
  }
}

// Block that holds element k of row o.
__device__ inline IntegerBlock integer_block(const WeightView& weight, int64_t o, int64_t k) {
  const WeightBlock block = weight_block(weight.format);
  return {weight.format,
          reinterpret_cast<const uint8_t*>(weight.data) + o * weight.row_bytes + k / block.elements * block.bytes};
}

__device__ inline float e4m3_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return __uint_as_float(0x7fc00000u);
  const float magnitude =
      exponent == 0
          ? static_cast<float>(mantissa) * 0x1p-9f
          : __uint_as_float(static_cast<uint32_t>(exponent + 120) << 23 | static_cast<uint32_t>(mantissa) << 20);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// An F32, F16 or BF16 number at any address.
__device__ inline float plain_value(WeightFormat format, const uint8_t* at) {
  const auto half = static_cast<uint16_t>(at[0] | at[1] << 8);
  if (format == WeightFormat::kF16) return cuda::widen_f16(half);
  if (format == WeightFormat::kBf16) return bf16_to_f32(half);
  return __uint_as_float(half | static_cast<uint32_t>(at[2] | at[3] << 8) << 16);
}

// Scale of an element of a kE4m3 matrix.
__device__ inline float e4m3_block_scale(const WeightView& weight, int64_t o, int64_t k) {
  const auto* row = reinterpret_cast<const uint8_t*>(weight.scales) +
                    (weight.scale_first + o) / weight.scale_rows * weight.scale_row_bytes;
  return plain_value(weight.scale_format, row + k / weight.scale_cols * weight_block(weight.scale_format).bytes);
}

__device__ inline float e2m1_value(int code) {
  const int doubled = (0xc8643210u >> (code % 8 * 4)) & 15;
  const float magnitude = static_cast<float>(doubled) * 0.5f;
  return code >= 8 ? -magnitude : magnitude;
}

// Code and scale code of an element of a kMxfp4 or kMxfp4Block matrix.
__device__ inline int mxfp4_code(const WeightView& weight, int64_t o, int64_t k) {
  const auto* row = reinterpret_cast<const uint8_t*>(weight.data) + o * weight.row_bytes;
  if (weight.format == WeightFormat::kMxfp4) return row[k / 2] >> (k % 2 * 4) & 15;
  const int i = static_cast<int>(k % 32);
  return row[k / 32 * 17 + 1 + i % 16] >> (i / 16 * 4) & 15;
}
__device__ inline int mxfp4_scale(const WeightView& weight, int64_t o, int64_t k) {
  if (weight.format == WeightFormat::kMxfp4) {
    return reinterpret_cast<const uint8_t*>(weight.scales)[o * weight.scale_row_bytes + k / 32];
  }
  return reinterpret_cast<const uint8_t*>(weight.data)[o * weight.row_bytes + k / 32 * 17];
}

// Element (o, k) as quant.h defines it: the same bits. Every format but kNvfp4.
__device__ inline float weight_value(const WeightView& weight, int64_t o, int64_t k) {
  const auto* row = reinterpret_cast<const uint8_t*>(weight.data) + o * weight.row_bytes;
  switch (weight.format) {
    case WeightFormat::kF32:
      return plain_value(weight.format, row + k * 4);
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return plain_value(weight.format, row + k * 2);
    case WeightFormat::kE4m3:
      return e4m3_value(row[k]) * e4m3_block_scale(weight, o, k);
    case WeightFormat::kMxfp4:
    case WeightFormat::kMxfp4Block: {
      const float value =
          e2m1_value(mxfp4_code(weight, o, k)) * e8m0_to_f32(static_cast<uint8_t>(mxfp4_scale(weight, o, k)));
      return weight.format == WeightFormat::kMxfp4 ? value : value + 0.f;  // GGUF's has no -0
    }
    default: {
      const IntegerBlock block = integer_block(weight, o, k);
      const int i = static_cast<int>(k % weight_block(weight.format).elements);
      const float product = (block.d() * static_cast<float>(block.scale(i / 16))) * static_cast<float>(block.code(i));
      return has_minima(weight.format) ? product - block.dmin() * static_cast<float>(block.min(i / 16)) : product;
    }
  }
}

}  // namespace weir
