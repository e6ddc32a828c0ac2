// Register tiles of the delta rule, for delta_rule_cpu.cpp only. Lanes are value columns (or key channels in the dots),
// so that every sum keeps the order of the specification whatever the tile.
#pragma once

#include "base/lanes.h"

namespace weir::WEIR_ISA {
namespace {

// Accumulators a tile may hold: FMA latency 4 x 2 ports asks for at least 8 registers in flight; 32 registers of 16
// lanes leave room for 4 rows x 4 vectors and their operands, 16 registers of 8 lanes for 4 rows x 1 vector (of two
// registers).
#if defined(WEIR_ISA_avx512)
constexpr int kTileVectors = 4;
constexpr int kStreamVectors = 8;  // two rows (decode)
#else
constexpr int kTileVectors = 1;
constexpr int kStreamVectors = 2;
#endif
constexpr int kTileRows = 4;

inline V16 load_some(const float* p, int64_t n) { return n >= 16 ? load16(p) : load16_first(p, n); }
inline void store_some(float* p, V16 a, int64_t n) {
  if (n >= 16) {
    store16(p, a);
  } else {
    store16_first(p, a, n);
  }
}
template <bool kTail>
inline V16 load_column(const float* p, int64_t n) {
  if constexpr (kTail) return load16_first(p, n);
  return load16(p);
}
template <bool kTail>
inline void store_column(float* p, V16 a, int64_t n) {
  if constexpr (kTail) {
    store16_first(p, a, n);
  } else {
    store16(p, a);
  }
}

// How far a pass over S runs ahead of its loads, in floats: 8 KiB cover the memory latency at one core's share of
// bandwidth.
constexpr int64_t kAhead = 2048;

// Calls body.operator()<vectors, tail>(column, columns) over all value columns: as many full tiles of kWide vectors as
// fit, then single vectors, then what is left of one.
template <int kWide, class Body>
inline void for_columns(int64_t value_dim, Body&& body) {
  int64_t v = 0;
  for (; v + 16 * kWide <= value_dim; v += 16 * kWide) body.template operator()<kWide, false>(v, 16 * kWide);
  if constexpr (kWide > 1) {
    for (; v + 16 <= value_dim; v += 16) body.template operator()<1, false>(v, 16);
  }
  if (v < value_dim) body.template operator()<1, true>(v, value_dim - v);
}

// sum[r][v] += x[r][c] * s[c][v] for `keys` rows of s, c ascending; from +0 if `fresh`.
// Prefetches s `ahead` floats further on, once for each cache line, unless `ahead` is 0.
template <int kRows, int kVectors, bool kTail>
inline void product_tile(const float* x, int64_t x_stride, const float* s, int64_t s_stride, int64_t keys, float* sum,
                         int64_t sum_stride, int64_t columns, bool fresh, int64_t ahead) {
  V16 acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kVectors; ++t) acc[r][t] = fresh ? zero16() : load16(sum + r * sum_stride + 16 * t);
  }
  for (int64_t c = 0; c < keys; ++c) {
    const float* row = s + c * s_stride;
    V16 b[kVectors];
#pragma GCC unroll 8
    for (int t = 0; t < kVectors; ++t) b[t] = load_column<kTail>(row + 16 * t, columns);
    if (ahead != 0) {
#pragma GCC unroll 8
      for (int t = 0; t < kVectors; ++t) {
        _mm_prefetch(reinterpret_cast<const char*>(row + ahead + 16 * t), _MM_HINT_T0);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V16 a = set16(x[r * x_stride + c]);
#pragma GCC unroll 8
      for (int t = 0; t < kVectors; ++t) acc[r][t] = fma(a, b[t], acc[r][t]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kVectors; ++t) store16(sum + r * sum_stride + 16 * t, acc[r][t]);
  }
}

// The same for any number of rows.
template <int kVectors, bool kTail>
inline void product_rows(int64_t rows, const float* x, int64_t x_stride, const float* s, int64_t s_stride, int64_t keys,
                         float* sum, int64_t sum_stride, int64_t columns, bool fresh) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    product_tile<kTileRows, kVectors, kTail>(x + r * x_stride, x_stride, s, s_stride, keys, sum + r * sum_stride,
                                             sum_stride, columns, fresh, 0);
  }
  for (; r + 2 <= rows; r += 2) {
    product_tile<2, kVectors, kTail>(x + r * x_stride, x_stride, s, s_stride, keys, sum + r * sum_stride, sum_stride,
                                     columns, fresh, 0);
  }
}

// next[c][v] = keep[c] * s[c][v] + sum over 16 rows of carry[j][c] * u[j][v], j ascending. s null: zeros. next may be
// s. A copy goes to `target` unless null, around the cache where `stream` says so (nothing reads it in this step).
template <int kKeys, int kVectors, bool kTail>
inline void commit_tile(const float* keep, const float* carry, int64_t carry_stride, const float* u, int64_t u_stride,
                        const float* s, float* next, float* target, bool stream, int64_t s_stride, int64_t columns) {
  V16 acc[kKeys][kVectors];
#pragma GCC unroll 8
  for (int c = 0; c < kKeys; ++c) {
    const V16 e = set16(keep[c]);
#pragma GCC unroll 8
    for (int t = 0; t < kVectors; ++t) {
      if (s == nullptr) {
        acc[c][t] = e * zero16();
      } else {
        acc[c][t] = e * load_column<kTail>(s + c * s_stride + 16 * t, columns);
        _mm_prefetch(reinterpret_cast<const char*>(s + c * s_stride + 16 * t + kAhead), _MM_HINT_T0);
      }
    }
  }
#pragma GCC unroll 2
  for (int64_t j = 0; j < 16; ++j) {
    V16 b[kVectors];
#pragma GCC unroll 8
    for (int t = 0; t < kVectors; ++t) b[t] = load16(u + j * u_stride + 16 * t);
#pragma GCC unroll 8
    for (int c = 0; c < kKeys; ++c) {
      const V16 w = set16(carry[j * carry_stride + c]);
#pragma GCC unroll 8
      for (int t = 0; t < kVectors; ++t) acc[c][t] = fma(w, b[t], acc[c][t]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kKeys; ++c) {
#pragma GCC unroll 8
    for (int t = 0; t < kVectors; ++t) {
      store_column<kTail>(next + c * s_stride + 16 * t, acc[c][t], columns);
      if (target == nullptr) continue;
      float* to = target + c * s_stride + 16 * t;
      if (!kTail && stream) {
#if defined(WEIR_ISA_avx512)
        _mm512_stream_ps(to, acc[c][t].v);
#else
        _mm256_stream_ps(to, acc[c][t].lo);
        _mm256_stream_ps(to + 8, acc[c][t].hi);
#endif
      } else {
        store_column<kTail>(to, acc[c][t], columns);
      }
    }
  }
}

// Eight times fold16 at once: out[i] = fold16(a[i]), the same additions.
inline void fold_eight(const V16* a, float* out) {
#if defined(WEIR_ISA_avx512)
  __m512 quad[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    __m512 pair[2];  // [a8 | b8]: lanes i + (i + 8) of two vectors
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512 x = a[4 * h + 2 * i].v, y = a[4 * h + 2 * i + 1].v;
      pair[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
    quad[h] = _mm512_add_ps(_mm512_shuffle_f32x4(pair[0], pair[1], 0x88), _mm512_shuffle_f32x4(pair[0], pair[1], 0xdd));
  }
  // In each 128-bit part q: vector q in quad[0], vector q + 4 in quad[1]; four sums left in each.
  const __m512 two = _mm512_add_ps(_mm512_unpacklo_ps(quad[0], quad[1]), _mm512_unpackhi_ps(quad[0], quad[1]));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xee));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, one)));
#else
  __m256 quad[4];  // [a4 | b4]
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 x = _mm256_add_ps(a[2 * i].lo, a[2 * i].hi), y = _mm256_add_ps(a[2 * i + 1].lo, a[2 * i + 1].hi);
    quad[i] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  }
  const __m256d t =
      _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(quad[0], quad[1]), _mm256_unpackhi_ps(quad[0], quad[1])));
  const __m256d s =
      _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(quad[2], quad[3]), _mm256_unpackhi_ps(quad[2], quad[3])));
  const __m256 one =
      _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(t, s)), _mm256_castpd_ps(_mm256_unpackhi_pd(t, s)));
  // Vectors 0 2 4 6 | 1 3 5 7.
  _mm256_storeu_ps(out, _mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
#endif
}

// Sixteen-lane dot products of two rows of x with eight rows of k, all padded: out[r][0..8).
inline void dot_tile(const float* x0, const float* x1, const float* k, int64_t k_stride, int64_t keys, float* out0,
                     float* out1) {
  V16 acc[2][8];
#if defined(WEIR_ISA_avx512)
  constexpr int kAtOnce = 8;
#else
  constexpr int kAtOnce = 2;
#endif
#pragma GCC unroll 4
  for (int j0 = 0; j0 < 8; j0 += kAtOnce) {
    V16 sum[2][kAtOnce];
    for (int r = 0; r < 2; ++r) {
      for (int j = 0; j < kAtOnce; ++j) sum[r][j] = zero16();
    }
    for (int64_t c = 0; c < keys; c += 16) {
      const V16 a0 = load16(x0 + c), a1 = load16(x1 + c);
#pragma GCC unroll 8
      for (int j = 0; j < kAtOnce; ++j) {
        const V16 b = load16(k + (j0 + j) * k_stride + c);
        sum[0][j] = fma(a0, b, sum[0][j]);
        sum[1][j] = fma(a1, b, sum[1][j]);
      }
    }
    for (int r = 0; r < 2; ++r) {
      for (int j = 0; j < kAtOnce; ++j) acc[r][j0 + j] = sum[r][j];
    }
  }
  fold_eight(acc[0], out0);
  fold_eight(acc[1], out1);
}

}  // namespace
}  // namespace weir::WEIR_ISA
