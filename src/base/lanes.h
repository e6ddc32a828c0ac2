// Sixteen FP32 lanes, the unit in which every reduction of weir is defined (docs/numerics.md): one AVX-512 register or
// two AVX2 registers. Included only by *_cpu.cpp files, which are compiled once per instruction set inside
// `namespace weir::WEIR_ISA`; because V16 lives in that namespace, templates over it never merge across instruction
// sets.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/math.h"

#ifndef WEIR_ISA
#error "lanes.h belongs into *_cpu.cpp files only"
#endif

namespace weir::WEIR_ISA {

#if defined(WEIR_ISA_avx512)

struct V16 {
  __m512 v;
};
inline V16 zero16() { return {_mm512_setzero_ps()}; }
inline V16 set16(float a) { return {_mm512_set1_ps(a)}; }
inline V16 load16(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store16(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
// The first n (0..16) lanes; the others are +0 and not touched in memory.
inline V16 load16_first(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store16_first(float* p, V16 a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline V16 load16_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
inline V16 load16_bf16_first(const uint16_t* p, int64_t n) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p)), 16))};
}
inline V16 load16_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline V16 load16_f16_first(const uint16_t* p, int64_t n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
inline void store16_f16_first(uint16_t* p, V16 a, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline V16 operator+(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V16 operator-(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V16 operator*(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V16 operator/(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline V16 min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V16 sqrt(V16 a) { return {_mm512_sqrt_ps(a.v)}; }
inline V16 abs(V16 a) { return {_mm512_abs_ps(a.v)}; }
inline V16 operator-(V16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.f))}; }
inline V16 copysign(V16 magnitude, V16 sign) {
  const __m512 bit = _mm512_set1_ps(-0.f);
  return {_mm512_or_ps(_mm512_andnot_ps(bit, magnitude.v), _mm512_and_ps(bit, sign.v))};
}
inline V16 select_less(V16 a, V16 b, V16 x, V16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline V16 select_nan(V16 a, V16 x, V16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), y.v, x.v)};
}
inline V16 exp2_int(V16 n) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvttps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
inline V16 exponent(V16 a) {
  return {
      _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(a.v), 23), _mm512_set1_epi32(127)))};
}
inline V16 mantissa(V16 a) {
  return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x007fffff)),
                                              _mm512_set1_epi32(0x3f800000)))};
}
// lane i adds lane i + 8, then + 4, + 2, + 1
inline float fold16(V16 a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else

struct V16 {
  __m256 lo, hi;  // lanes 0..7, 8..15
};
inline V16 zero16() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline V16 set16(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline V16 load16(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store16(float* p, V16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
// Lanes [from, from + 8) of "the first n lanes", as a mask for maskload.
inline __m256i first_lanes(int64_t n, int from) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n) - from), lane);
}
// The first n (0..16) lanes; the others are +0 and not touched in memory.
inline V16 load16_first(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, first_lanes(n, 0)), _mm256_maskload_ps(p + 8, first_lanes(n, 8))};
}
inline void store16_first(float* p, V16 a, int64_t n) {
  _mm256_maskstore_ps(p, first_lanes(n, 0), a.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(n, 8), a.hi);
}
inline __m256 widen8_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline V16 load16_bf16(const uint16_t* p) {
  return {widen8_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen8_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline V16 load16_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
struct Half16 {
  alignas(32) uint16_t h[16];
};
inline Half16 copy_first(const uint16_t* p, int64_t n) {
  Half16 t{};
  __builtin_memcpy(t.h, p, static_cast<size_t>(2 * n));  // p may be odd: files do not align
  return t;
}
inline V16 load16_bf16_first(const uint16_t* p, int64_t n) {
  const Half16 t = copy_first(p, n);
  return load16_bf16(t.h);
}
inline V16 load16_f16_first(const uint16_t* p, int64_t n) {
  const Half16 t = copy_first(p, n);
  return load16_f16(t.h);
}
inline void store16_f16_first(uint16_t* p, V16 a, int64_t n) {
  Half16 t;
  _mm_store_si128(reinterpret_cast<__m128i*>(t.h),
                  _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_store_si128(reinterpret_cast<__m128i*>(t.h + 8),
                  _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  for (int64_t i = 0; i < n; ++i) p[i] = t.h[i];
}
inline V16 operator+(V16 a, V16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline V16 operator-(V16 a, V16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline V16 operator*(V16 a, V16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline V16 operator/(V16 a, V16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline V16 min(V16 a, V16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline V16 max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline V16 sqrt(V16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
inline V16 abs(V16 a) {
  const __m256 bit = _mm256_set1_ps(-0.f);
  return {_mm256_andnot_ps(bit, a.lo), _mm256_andnot_ps(bit, a.hi)};
}
inline V16 operator-(V16 a) {
  const __m256 bit = _mm256_set1_ps(-0.f);
  return {_mm256_xor_ps(a.lo, bit), _mm256_xor_ps(a.hi, bit)};
}
inline V16 copysign(V16 magnitude, V16 sign) {
  const __m256 bit = _mm256_set1_ps(-0.f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.lo), _mm256_and_ps(bit, sign.lo)),
          _mm256_or_ps(_mm256_andnot_ps(bit, magnitude.hi), _mm256_and_ps(bit, sign.hi))};
}
inline V16 select_less(V16 a, V16 b, V16 x, V16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline V16 select_nan(V16 a, V16 x, V16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
}
inline __m256 exp2_int8(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline V16 exp2_int(V16 n) { return {exp2_int8(n.lo), exp2_int8(n.hi)}; }
inline __m256 exponent8(__m256 a) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(a), 23), _mm256_set1_epi32(127)));
}
inline V16 exponent(V16 a) { return {exponent8(a.lo), exponent8(a.hi)}; }
inline __m256 mantissa8(__m256 a) {
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x007fffff)),
                                             _mm256_set1_epi32(0x3f800000)));
}
inline V16 mantissa(V16 a) { return {mantissa8(a.lo), mantissa8(a.hi)}; }
// lane i adds lane i + 8, then + 4, + 2, + 1
inline float fold16(V16 a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
#endif
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  const __m128 s1 = _mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1));
  return _mm_cvtss_f32(s1);
}

}  // namespace weir::WEIR_ISA

namespace weir::math {
template <>
inline WEIR_ISA::V16 broadcast<WEIR_ISA::V16>(float a) {
  return WEIR_ISA::set16(a);
}
}  // namespace weir::math
