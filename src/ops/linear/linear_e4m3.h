// FP8 weights in registers: E4M3 codes times the scale of their block, rounded to FP32 as dequantize does. Included by
// kernels only, after what defines Reg (linear_tile.h) where tiles are used.
//
// A code's seven low bits, moved up by seven, are the F16 of 2^-8 times its value (subnormal codes are subnormal F16);
// scales are multiplied by 2^8 instead. That is exact: the binder refuses scales that could overflow. A NaN code (all
// seven bits) would read as 480: it becomes an F16 NaN.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/lanes.h"
#include "formats/weight.h"

namespace weir::WEIR_ISA {
namespace {

// 2^-8 times the values of codes in the low bytes of words, as F16.
inline __m128i e4m3_halves(__m128i words) {
  const __m128i half = _mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, _mm_set1_epi16(0x3f80)), _mm_set1_epi16(0x3f80));
  return _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7fff)));
}
inline __m256 load8_e4m3(const uint8_t* p) {
  return _mm256_cvtph_ps(e4m3_halves(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))));
}

#if defined(WEIR_ISA_avx512)
inline __m512 widen_e4m3(__m128i codes) {
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                                        _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __mmask16 nan =
      _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, _mm256_set1_epi16(0x3f80)), _mm256_set1_epi16(0x3f80));
  return _mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7fff)));
}
inline V16 load16_e4m3(const uint8_t* p) { return {widen_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
#else
inline V16 load16_e4m3(const uint8_t* p) { return {load8_e4m3(p), load8_e4m3(p + 8)}; }
#endif

// The first n; zeros after them.
inline V16 load16_e4m3_first(const uint8_t* p, int64_t n) {
  uint8_t codes[16] = {};
  for (int64_t i = 0; i < n; ++i) codes[i] = p[i];
  return load16_e4m3(codes);
}

// 2^8 times scale `at` of a row of the grid.
inline float e4m3_factor(WeightFormat format, const std::byte* row, int64_t at) {
  uint32_t bits = 0;
  if (format == WeightFormat::kF32) {
    __builtin_memcpy(&bits, row + at * 4, 4);
  } else {
    uint16_t half;
    __builtin_memcpy(&half, row + at * 2, 2);
    if (format == WeightFormat::kF16) return 256.f * _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
    bits = static_cast<uint32_t>(half) << 16;
  }
  return 256.f * __builtin_bit_cast(float, bits);
}
inline const std::byte* e4m3_scale_row(const WeightView& w, int64_t o) {
  return w.scales + (w.scale_first + o) / w.scale_rows * w.scale_row_bytes;
}

// Elements [k, k + depth) of output o, then zeros to a multiple of 16. k: a multiple of 16, and so are scale_cols or
// there is one scale in a row.
inline void expand_e4m3(const WeightView& w, int64_t o, int64_t k, int64_t depth, float* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(w.data + o * w.row_bytes);
  const std::byte* scales = e4m3_scale_row(w, o);
  for (const int64_t end = k + depth; k < end;) {
    const int64_t block = k / w.scale_cols;
    const int64_t next = (block + 1) * w.scale_cols;
    const int64_t stop = next < end ? next : end;
    const V16 factor = set16(e4m3_factor(w.scale_format, scales, block));
    for (; k + 16 <= stop; k += 16, out += 16) store16(out, load16_e4m3(codes + k) * factor);
    if (k < stop) store16(out, load16_e4m3_first(codes + k, stop - k) * factor);
    if (k < stop) k = stop;
  }
}

}  // namespace
}  // namespace weir::WEIR_ISA
