// GGUF's tensor types: blocks of codes with a shared scale. This is the definition in plain loops; kernels that read
// the same bytes are tested against it.
//
// Numbers are little-endian; half is IEEE binary16, lo and hi are the nibbles of a byte, d, m and dmin are halves.
//
//   Q4_0    d; qs[16]                             x = d (q - 8)           blocks of 32: byte i holds element i (lo)
//   Q4_1    d; m; qs[16]                          x = d q + m             and element i + 16 (hi)
//   Q5_0    d; u32 qh; qs[16]                     x = d (q - 16)          bit i of qh is bit 4 of element i
//   Q5_1    d; m; u32 qh; qs[16]                  x = d q + m
//   Q8_0    d; i8 qs[32]                          x = d q
//   IQ4_NL  d; qs[16]                             x = d T[q]              T: kIq4Values
//   MXFP4   u8 e; qs[16]                          x = 2^(e-127) E2M1[q]   computed as 2^(e-128) times the doubled value
//   NVFP4   u8 d[4]; qs[32]                       x = UE4M3(d) / 2 times the doubled value; sixteen elements a scale
//   Q2_K    scales[16]; qs[64]; d; dmin           x = (d sc) q - dmin mn  superblocks of 256: sixteen or eight groups
//   Q3_K    hmask[32]; qs[64]; scales[12]; d      x = (d sc) (q - 4)      with scales (and minima) of their own, 4 or 6
//   Q4_K    d; dmin; scales[12]; qs[128]          x = (d sc) q - dmin mn  bits each (Q6_K: 8, signed)
//   Q5_K    d; dmin; scales[12]; qh[32]; qs[128]  x = (d sc) q - dmin mn
//   Q6_K    ql[128]; qh[64]; i8 scales[16]; d     x = (d sc) (q - 32)
//   IQ4_XS  d; u16 high; low[4]; qs[128]          x = (d (sc - 32)) T[q]
//
// Every product in these formulas is exact in FP32; where a minimum is added or subtracted that is the one rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/weight.h"

namespace weir {

// FP8 E4M3 is no type of GGUF: x = E4M3[q] s with a scale of a block of the matrix (weight.h), one rounding.
float e4m3_to_f32(uint8_t code);
// Scale of element (o, k) of a kE4m3 matrix.
float e4m3_scale(const WeightView& weight, int64_t o, int64_t k);

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// One block of the integer formats (Q4_0 to IQ4_XS) in integers: x[i] = (d scale[i / 16]) code[i] - dmin min[i / 16].
// Q4_1 and Q5_1: min is 1 and dmin is -m; formats of 32 elements: scale is 1.
struct BlockCodes {
  float d = 0;
  float dmin = 0;  // 0 in formats without minima
  int8_t code[256];
  int16_t scale[16];
  int16_t min[16];
};

// Formats that multiply in integers with `--activations auto`.
constexpr bool is_integer_format(WeightFormat format) {
  return format >= WeightFormat::kQ4_0 && format <= WeightFormat::kIq4Xs;
}
constexpr bool has_minima(WeightFormat format) {
  return format == WeightFormat::kQ4_1 || format == WeightFormat::kQ5_1 || format == WeightFormat::kQ2_K ||
         format == WeightFormat::kQ4_K || format == WeightFormat::kQ5_K;
}

void decode_block(WeightFormat format, const std::byte* block, BlockCodes& codes);

// `elements` values of a row, from its first: a multiple of the block's elements. Every format but kMxfp4 and kE4m3,
// whose scales lie elsewhere.
void dequantize_row(WeightFormat format, const std::byte* row, int64_t elements, float* out);

// Elements [first, first + elements) of row o of any format; both multiples of the block's elements.
void dequantize(const WeightView& weight, int64_t o, int64_t first, int64_t elements, float* out);

}  // namespace weir
