// Sums over the lanes of several accumulators at once. A transposed tree adds the same pairs of lanes as fold16
// (i + i + 8, + 4, + 2, + 1) at 3 instructions per accumulator instead of 9. Included by linear_cpu.cpp only.
#pragma once

#include "base/lanes.h"

namespace weir::WEIR_ISA {
namespace {

#if defined(WEIR_ISA_avx512)

constexpr int kFold = 8;

// y[i] = sum of a[i] for the first n of the eight.
inline void store_folded(float* y, const V16 (&a)[kFold], int64_t n) {
  __m512 s[4];  // s[i]: 8 lanes of a[2i], 8 of a[2i + 1]
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    s[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i].v, a[2 * i + 1].v, 0x44),
                         _mm512_shuffle_f32x4(a[2 * i].v, a[2 * i + 1].v, 0xee));
  }
  // 4 lanes each of a[0..3] and of a[4..7]
  const __m512 t0 = _mm512_add_ps(_mm512_shuffle_f32x4(s[0], s[1], 0x88), _mm512_shuffle_f32x4(s[0], s[1], 0xdd));
  const __m512 t1 = _mm512_add_ps(_mm512_shuffle_f32x4(s[2], s[3], 0x88), _mm512_shuffle_f32x4(s[2], s[3], 0xdd));
  const __m512d d0 = _mm512_castps_pd(t0);
  const __m512d d1 = _mm512_castps_pd(t1);
  const __m512 u =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(d0, d1)), _mm512_castpd_ps(_mm512_unpackhi_pd(d0, d1)));
  const __m512 v = _mm512_add_ps(u, _mm512_movehdup_ps(u));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256 sums = _mm512_castps512_ps256(_mm512_permutexvar_ps(order, v));
  if (n >= kFold) {
    _mm256_storeu_ps(y, sums);
  } else {
    _mm256_mask_storeu_ps(y, static_cast<__mmask8>((1u << n) - 1u), sums);
  }
}

#else

constexpr int kFold = 4;

// y[i] = sum of a[i] for the first n of the four.
inline void store_folded(float* y, const V16 (&a)[kFold], int64_t n) {
  __m256 s[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) s[i] = _mm256_add_ps(a[i].lo, a[i].hi);
  // 4 lanes each of a[0], a[1] and of a[2], a[3]
  const __m256 t0 = _mm256_add_ps(_mm256_permute2f128_ps(s[0], s[1], 0x20), _mm256_permute2f128_ps(s[0], s[1], 0x31));
  const __m256 t1 = _mm256_add_ps(_mm256_permute2f128_ps(s[2], s[3], 0x20), _mm256_permute2f128_ps(s[2], s[3], 0x31));
  const __m256 u = _mm256_add_ps(_mm256_shuffle_ps(t0, t1, 0x44), _mm256_shuffle_ps(t0, t1, 0xee));
  const __m256 v = _mm256_add_ps(u, _mm256_movehdup_ps(u));  // lanes 0, 2, 4, 6: a[0], a[2], a[1], a[3]
  const __m128 low = _mm256_castps256_ps128(v);
  const __m128 high = _mm256_extractf128_ps(v, 1);
  const __m128 sums = _mm_shuffle_ps(_mm_unpacklo_ps(low, high), _mm_unpackhi_ps(low, high), 0x44);
  if (n >= kFold) {
    _mm_storeu_ps(y, sums);
  } else {
    _mm_maskstore_ps(y, _mm_cmpgt_epi32(_mm_set1_epi32(static_cast<int>(n)), _mm_setr_epi32(0, 1, 2, 3)), sums);
  }
}

#endif

// y[r * y_stride + o] = sum of acc[o][r], for the first `outs` of NO outputs.
template <int NO, int NR>
inline void store_folded_tile(const V16 (&acc)[NO][NR], float* y, int64_t y_stride, int64_t outs) {
  static_assert(NO <= kFold);
#pragma GCC unroll 8
  for (int r = 0; r < NR; ++r) {
    V16 a[kFold];
#pragma GCC unroll 8
    for (int o = 0; o < kFold; ++o) a[o] = acc[o < NO ? o : NO - 1][r];
    store_folded(y + r * y_stride, a, outs);
  }
}

}  // namespace
}  // namespace weir::WEIR_ISA
