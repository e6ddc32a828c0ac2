// MXFP4 in registers: nibbles become E2M1 values times their block's power of two, formed exactly in FP32, then
// multiplied. Included by linear_cpu.cpp only.
#pragma once

#include <bit>

#include "ops/linear/linear_fold.h"
#include "ops/linear/linear_tile.h"

namespace weir::WEIR_ISA {
namespace {

// E8M0 scales by code. Read from memory a scale costs no shuffle; 2^-127 is a subnormal.
struct Powers {
  float of[256];
};
constexpr Powers kPowers = [] {
  Powers powers{};
  powers.of[0] = 0x1p-127f;
  for (uint32_t code = 1; code < 256; ++code) powers.of[code] = std::bit_cast<float>(code << 23);
  return powers;
}();

inline float power(const std::byte* scale) { return kPowers.of[static_cast<uint8_t>(*scale)]; }

#if defined(WEIR_ISA_avx512)

// The decoder's natural order of lanes: lane 2i holds element i, lane 2i + 1 element i + 8, because one 64-bit
// broadcast of sixteen nibbles, shifted right by 4i in quadword i, leaves nibbles i and i + 8 at the bottom of its two
// dwords, where vpermps looks for its indices: a load, a shift and a permutation per sixteen weights.
struct Mxfp4 {
  __m512 values =
      _mm512_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f);
  __m512i shifts = _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28);
  __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  __m512i inverse = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);

  struct Block {
    V16 first, second;  // elements 0..15 and 16..31
  };
  V16 widen(__m512 scaled, const std::byte* nibbles) const {
    long long packed;
    __builtin_memcpy(&packed, nibbles, 8);
    return {_mm512_permutexvar_ps(_mm512_srlv_epi64(_mm512_set1_epi64(packed), shifts), scaled)};
  }
  Block decode(const std::byte* nibbles, float scale) const {
    const __m512 scaled = _mm512_mul_ps(values, _mm512_set1_ps(scale));
    return {widen(scaled, nibbles), widen(scaled, nibbles + 8)};
  }
  V16 load_x(const float* x) const { return {_mm512_permutexvar_ps(order, _mm512_loadu_ps(x))}; }
  V16 straighten(V16 a) const { return {_mm512_permutexvar_ps(inverse, a.v)}; }
};

#else

// The decoder's natural order within eight lanes is 0 2 4 6 1 3 5 7: the low nibbles of a block's 16 bytes in the lower
// half of a register, the high ones in the upper, each looked up as the two bytes of a BF16 and unpacked twice.
struct Mxfp4 {
  __m256i shifts = _mm256_setr_epi64x(0, 0, 4, 4);
  __m256i nibble = _mm256_set1_epi8(15);
  // BF16 of 0, .5, 1, 1.5, 2, 3, 4, 6, then negative
  __m256i high_bytes = _mm256_setr_epi8(0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41,
                                        -0x40, -0x40, -0x40, -0x40, 0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                        -0x80, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40);
  __m256i low_bytes =
      _mm256_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0,
                       -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40);
  __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  __m256i inverse = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

  struct Block {
    V16 first, second;
  };
  static V16 widen(__m256i bf16, __m256 scale) {
    const __m256i zero = _mm256_setzero_si256();
    return {_mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, bf16)), scale),
            _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, bf16)), scale)};
  }
  Block decode(const std::byte* nibbles, float scale) const {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(nibbles)));
    const __m256i codes = _mm256_and_si256(_mm256_srlv_epi64(both, shifts), nibble);
    const __m256i high = _mm256_shuffle_epi8(high_bytes, codes);
    const __m256i low = _mm256_shuffle_epi8(low_bytes, codes);
    const __m256 factor = _mm256_set1_ps(scale);
    return {widen(_mm256_unpacklo_epi8(low, high), factor), widen(_mm256_unpackhi_epi8(low, high), factor)};
  }
  V16 load_x(const float* x) const {
    return {_mm256_permutevar8x32_ps(_mm256_loadu_ps(x), order),
            _mm256_permutevar8x32_ps(_mm256_loadu_ps(x + 8), order)};
  }
  V16 straighten(V16 a) const {
    return {_mm256_permutevar8x32_ps(a.lo, inverse), _mm256_permutevar8x32_ps(a.hi, inverse)};
  }
};

#endif

// As multiply_tile over the whole depth. x: rows in the decoder's order (arrange_x).
template <int NO, int NR>
void multiply_mxfp4(const FileRows<NO> weights, const FileRows<NO> scales, const float* x, int64_t x_stride,
                    int64_t depth, float* y, int64_t y_stride, int64_t outs, const std::byte* next) {
  const Mxfp4 format;
  XRows xs(x, x_stride);
  Ahead<NO * 16> ahead{next};
  V16 acc[NO][NR];
#pragma GCC unroll 8
  for (int o = 0; o < NO; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) acc[o][r] = zero16();
  }
  for (int64_t block = 0; block < depth / 32; ++block) {
    const auto decode = [&](int o) {
      return format.decode(weights.template at<std::byte>(o, block * 16),
                           power(scales.template at<std::byte>(o, block)));
    };
    if constexpr (NO > NR) {
      V16 x0[NR], x1[NR];
#pragma GCC unroll 8
      for (int r = 0; r < NR; ++r) {
        x0[r] = load16(xs.row(r));
        x1[r] = load16(xs.row(r) + 16);
      }
#pragma GCC unroll 8
      for (int o = 0; o < NO; ++o) {
        const Mxfp4::Block b = decode(o);
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r) acc[o][r] = fma(b.second, x1[r], fma(b.first, x0[r], acc[o][r]));
      }
    } else {
      Mxfp4::Block b[NO];
#pragma GCC unroll 8
      for (int o = 0; o < NO; ++o) b[o] = decode(o);
#pragma GCC unroll 8
      for (int r = 0; r < NR; ++r) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
          for (int i = 0; i < kParts; ++i) {
            Reg v = load_reg(xs.row(r) + half * 16 + i * kRegLanes);
            if constexpr (NO > 1) hold(v);
#pragma GCC unroll 8
            for (int o = 0; o < NO; ++o) {
              V16 w = half == 0 ? b[o].first : b[o].second;
              part(acc[o][r], i) = fma_reg(part(w, i), v, part(acc[o][r], i));
            }
          }
        }
      }
    }
    xs.advance(32);
    ahead.fetch();
  }
#pragma GCC unroll 8
  for (int o = 0; o < NO; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) acc[o][r] = format.straighten(acc[o][r]);
  }
  store_folded_tile<NO, NR>(acc, y, y_stride, outs);
}

// One row of x in the decoder's order, depth a multiple of 16.
inline void arrange_x(const float* x, int64_t depth, float* arranged) {
  const Mxfp4 format;
  for (int64_t k = 0; k < depth; k += 16) store16(arranged + k, format.load_x(x + k));
}

// One row, depth elements (a multiple of 32), to FP32 in order.
inline void expand_mxfp4(const std::byte* nibbles, const std::byte* scales, int64_t depth, float* panel) {
  const Mxfp4 format;
  for (int64_t block = 0; block < depth / 32; ++block) {
    const Mxfp4::Block b = format.decode(nibbles + block * 16, power(scales + block));
    store16(panel + block * 32, format.straighten(b.first));
    store16(panel + block * 32 + 16, format.straighten(b.second));
  }
}

}  // namespace
}  // namespace weir::WEIR_ISA
