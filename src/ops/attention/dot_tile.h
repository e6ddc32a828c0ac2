// Register tiles of dot products by the sixteen-lane scheme (docs/numerics.md, rule 1), for *_cpu.cpp files only.
//
// A tile is Q FP32 rows times K rows of any element type, each pair with its own sixteen sums. A tile has kTileDots
// pairs: with AVX-512 sixteen pairs take sixteen of 32 registers; with AVX2 eight pairs take eight of 16, in two
// passes, one over lanes 0..7 and one over lanes 8..15, which never meet before the fold. Both are at least as many
// chains as FMA latency x ports (4 x 2). The sums of all pairs fold together as a transposition, so that a fold costs
// three instructions a level for two pairs and leaves the results in one register in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/lanes.h"

namespace weir::WEIR_ISA {
namespace {

// Element types of a row: sixteen elements from `i`, widened exactly; load_first: the first n, zeros after them.
struct F32 {
  static constexpr int64_t kBytes = 4;
  static V16 load(const std::byte* row, int64_t i) { return load16(reinterpret_cast<const float*>(row) + i); }
  static V16 load_first(const std::byte* row, int64_t i, int64_t n) {
    return load16_first(reinterpret_cast<const float*>(row) + i, n);
  }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  static V16 load(const std::byte* row, int64_t i) { return load16_f16(reinterpret_cast<const uint16_t*>(row) + i); }
  static V16 load_first(const std::byte* row, int64_t i, int64_t n) {
    return load16_f16_first(reinterpret_cast<const uint16_t*>(row) + i, n);
  }
};
struct Bf16 {
  static constexpr int64_t kBytes = 2;
  static V16 load(const std::byte* row, int64_t i) { return load16_bf16(reinterpret_cast<const uint16_t*>(row) + i); }
  static V16 load_first(const std::byte* row, int64_t i, int64_t n) {
    return load16_bf16_first(reinterpret_cast<const uint16_t*>(row) + i, n);
  }
};

#if defined(WEIR_ISA_avx512)

constexpr int kTileDots = 16;

// [fold level of a | of b], interleaved at the level's width: lanes i and i + half add, a's sums keep the lower place.
inline __m512 fold_halves(__m512 a, __m512 b) {  // 16 -> 8
  return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
}
inline __m512 fold_quarters(__m512 a, __m512 b) {  // 8 -> 4
  const __m512i swap = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_permutex2var_ps(a, swap, b));
}
inline __m512 fold_twos(__m512 a, __m512 b) {  // 4 -> 2
  return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
}
inline __m512 fold_ones(__m512 a, __m512 b) {  // 2 -> 1
  const __m512 other = _mm512_mask_blend_ps(0x5555, a, b);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, a, b), _mm512_permute_ps(other, 0xb1));
}
// Lane i of the result is the fold of s[i].
inline __m512 fold_tile(__m512 (&s)[16]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) s[i] = fold_halves(s[i], s[i + 8]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) s[i] = fold_quarters(s[i], s[i + 4]);
  s[0] = fold_twos(s[0], s[2]);
  s[1] = fold_twos(s[1], s[3]);
  return fold_ones(s[0], s[1]);
}

// out[i * out_stride + j] = dot(q[i], key row j), i < Q, j < kTileDots / Q; key rows `stride` bytes apart.
template <class Element, int Q>
inline void dot_tile(const float* const* q, const std::byte* keys, int64_t stride, int64_t dim, float* out,
                     int64_t out_stride) {
  constexpr int K = kTileDots / Q;
  __m512 sum[kTileDots];
#pragma GCC unroll 16
  for (int i = 0; i < kTileDots; ++i) sum[i] = _mm512_setzero_ps();
  int64_t k = 0;
  for (; k + 16 <= dim; k += 16) {
    __m512 a[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) a[i] = _mm512_loadu_ps(q[i] + k);
#pragma GCC unroll 16
    for (int j = 0; j < K; ++j) {
      const __m512 b = Element::load(keys + j * stride, k).v;
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) sum[i * K + j] = _mm512_fmadd_ps(a[i], b, sum[i * K + j]);
    }
  }
  if (const int64_t n = dim - k; n > 0) {
    __m512 a[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) a[i] = load16_first(q[i] + k, n).v;
#pragma GCC unroll 16
    for (int j = 0; j < K; ++j) {
      const __m512 b = Element::load_first(keys + j * stride, k, n).v;
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) sum[i * K + j] = _mm512_fmadd_ps(a[i], b, sum[i * K + j]);
    }
  }
  const __m512 dots = fold_tile(sum);
  if constexpr (Q == 1) {
    _mm512_storeu_ps(out, dots);
  } else if constexpr (Q == 2) {
    _mm256_storeu_ps(out, _mm512_castps512_ps256(dots));
    _mm256_storeu_ps(out + out_stride, _mm512_extractf32x8_ps(dots, 1));
  } else {
    _mm_storeu_ps(out, _mm512_castps512_ps128(dots));
    _mm_storeu_ps(out + out_stride, _mm512_extractf32x4_ps(dots, 1));
    _mm_storeu_ps(out + 2 * out_stride, _mm512_extractf32x4_ps(dots, 2));
    _mm_storeu_ps(out + 3 * out_stride, _mm512_extractf32x4_ps(dots, 3));
  }
}

#else

constexpr int kTileDots = 8;

inline __m256 load8(F32, const std::byte* row, int64_t i) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + i);
}
inline __m256 load8(F16, const std::byte* row, int64_t i) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i)));
}
inline __m256 load8(Bf16, const std::byte* row, int64_t i) {
  return widen8_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i)));
}

inline __m256 fold_quarters(__m256 a, __m256 b) {  // 8 -> 4
  return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}
inline __m256 fold_twos(__m256 a, __m256 b) {  // 4 -> 2
  return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
}
inline __m256 fold_ones(__m256 a, __m256 b) {  // 2 -> 1
  return _mm256_add_ps(_mm256_blend_ps(a, b, 0xaa), _mm256_permute_ps(_mm256_blend_ps(a, b, 0x55), 0xb1));
}

// Adds the products of lanes [half, half + 8) of every sixteen elements to Q x K chains.
template <class Element, int Q, int K>
inline void dot_half(const float* const* q, const std::byte* keys, int64_t stride, int64_t dim, int half,
                     __m256 (&sum)[kTileDots]) {
#pragma GCC unroll 8
  for (int i = 0; i < kTileDots; ++i) sum[i] = _mm256_setzero_ps();
  int64_t k = 0;
  for (; k + 16 <= dim; k += 16) {
    __m256 a[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) a[i] = _mm256_loadu_ps(q[i] + k + half);
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) {
      const __m256 b = load8(Element{}, keys + j * stride, k + half);
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) sum[i * K + j] = _mm256_fmadd_ps(a[i], b, sum[i * K + j]);
    }
  }
  if (const int64_t n = dim - k; n > 0) {
    __m256 a[Q];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i) {
      const V16 all = load16_first(q[i] + k, n);
      a[i] = half ? all.hi : all.lo;
    }
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) {
      const V16 all = Element::load_first(keys + j * stride, k, n);
      const __m256 b = half ? all.hi : all.lo;
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) sum[i * K + j] = _mm256_fmadd_ps(a[i], b, sum[i * K + j]);
    }
  }
}

// out[i * out_stride + j] = dot(q[i], key row j), i < Q, j < kTileDots / Q; key rows `stride` bytes apart.
template <class Element, int Q>
inline void dot_tile(const float* const* q, const std::byte* keys, int64_t stride, int64_t dim, float* out,
                     int64_t out_stride) {
  constexpr int K = kTileDots / Q;
  __m256 low[kTileDots], s[kTileDots];
  dot_half<Element, Q, K>(q, keys, stride, dim, 0, low);
  dot_half<Element, Q, K>(q, keys, stride, dim, 8, s);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) s[i] = _mm256_add_ps(low[i], s[i]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) s[i] = fold_quarters(s[i], s[i + 4]);
  s[0] = fold_twos(s[0], s[2]);
  s[1] = fold_twos(s[1], s[3]);
  const __m256 dots = fold_ones(s[0], s[1]);
  if constexpr (Q == 1) {
    _mm256_storeu_ps(out, dots);
  } else if constexpr (Q == 2) {
    _mm_storeu_ps(out, _mm256_castps256_ps128(dots));
    _mm_storeu_ps(out + out_stride, _mm256_extractf128_ps(dots, 1));
  } else {
    const __m128 low4 = _mm256_castps256_ps128(dots);
    const __m128 high4 = _mm256_extractf128_ps(dots, 1);
    _mm_storel_pi(reinterpret_cast<__m64*>(out), low4);
    _mm_storeh_pi(reinterpret_cast<__m64*>(out + out_stride), low4);
    _mm_storel_pi(reinterpret_cast<__m64*>(out + 2 * out_stride), high4);
    _mm_storeh_pi(reinterpret_cast<__m64*>(out + 3 * out_stride), high4);
  }
}

#endif

}  // namespace
}  // namespace weir::WEIR_ISA
