// The integer formats of GGUF in registers: where the bytes of a block lie and how they become unsigned codes
// (code + offset, a byte each). Formulas work on bytes wherever those come from: a row's bytes in order, or one dword
// of many rows side by side. formats/quant.h is the definition. Included by kernels only.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "formats/weight.h"

namespace weir::WEIR_ISA {
namespace {

inline __m256i srl16(__m256i v, int n) { return _mm256_srli_epi16(v, n); }
inline __m256i sll16(__m256i v, int n) { return _mm256_slli_epi16(v, n); }
template <class V>
V set8(int byte);
template <>
inline __m256i set8<__m256i>(int byte) {
  return _mm256_set1_epi8(static_cast<char>(byte));
}
inline __m256i look_up(__m128i table, __m256i index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
}
#if defined(WEIR_ISA_avx512)
inline __m512i srl16(__m512i v, int n) { return _mm512_srli_epi16(v, static_cast<unsigned>(n)); }
inline __m512i sll16(__m512i v, int n) { return _mm512_slli_epi16(v, static_cast<unsigned>(n)); }
template <>
inline __m512i set8<__m512i>(int byte) {
  return _mm512_set1_epi8(static_cast<char>(byte));
}
inline __m512i look_up(__m128i table, __m512i index) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index);
}
#endif

template <class V>
inline V nibbles(V v, bool high) {
  return (high ? srl16(v, 4) : v) & set8<V>(15);
}
// Bits [from, from + 2) of every byte, moved to bit `to`.
template <class V>
inline V two_bits(V v, int from, int to) {
  return (from >= to ? srl16(v, from - to) : sll16(v, to - from)) & set8<V>(3 << to);
}
template <class V>
inline V one_bit(V v, int from, int to) {
  return (from >= to ? srl16(v, from - to) : sll16(v, to - from)) & set8<V>(1 << to);
}

inline uint16_t read16(const std::byte* p) {
  uint16_t v;
  __builtin_memcpy(&v, p, 2);
  return v;
}
inline uint32_t read32(const std::byte* p) {
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}
inline int read8(const std::byte* p) { return static_cast<int>(*p); }
inline float half_at(const std::byte* p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(read16(p)))); }
inline __m256i load32(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i load16_bytes(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// Every format below states
//   kBlock elements and kBytes of a block; kGroup elements with one scale
//   kOffset, added to codes to make them unsigned; kMost, the largest unsigned code
//   kMinima; kD, kMin: where the halves lie (kMin: of minima only)
//   kRaw, kUnits: the bytes of codes, as units of 16
//   split formats (kSplit): unit j holds 32 elements, low nibbles first; value(nibbles), fifth bits at kFifth if >= 0
//   straight formats: code(raw, j): elements 32 j ... 32 j + 31 from chunks of 32 bytes, raw(0), raw(1) ...
//   kBlock 256: scales(block, scale, min), by group

template <WeightFormat kName, int kHead, int kSize, int kFifthBits, int kBias, bool kWithMinima>
struct SplitNibbles {
  static constexpr WeightFormat kFormat = kName;
  static constexpr bool kSplit = true;
  static constexpr int kBlock = 32, kBytes = kSize, kGroup = 32, kOffset = kBias, kRaw = kHead, kUnits = 1;
  static constexpr int kMost = kFifthBits >= 0 ? 31 : 15, kFifth = kFifthBits, kD = 0, kMin = 2;
  static constexpr bool kMinima = kWithMinima;
  template <class V>
  static V value(V nibble) {
    return nibble;
  }
};
using Q4_0 = SplitNibbles<WeightFormat::kQ4_0, 2, 18, -1, 8, false>;
using Q4_1 = SplitNibbles<WeightFormat::kQ4_1, 4, 20, -1, 0, true>;
using Q5_0 = SplitNibbles<WeightFormat::kQ5_0, 6, 22, 2, 16, false>;
using Q5_1 = SplitNibbles<WeightFormat::kQ5_1, 8, 24, 4, 0, true>;

// T + 128 of IQ4 formats.
inline __m128i iq4_table() {
  return _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, static_cast<char>(129), static_cast<char>(141),
                       static_cast<char>(153), static_cast<char>(166), static_cast<char>(181), static_cast<char>(197),
                       static_cast<char>(217), static_cast<char>(241));
}
struct Iq4Nl : SplitNibbles<WeightFormat::kIq4Nl, 2, 18, -1, 128, false> {
  static constexpr int kMost = 241;
  template <class V>
  static V value(V nibble) {
    return look_up(iq4_table(), nibble);
  }
};

struct Q8_0 {
  static constexpr WeightFormat kFormat = WeightFormat::kQ8_0;
  static constexpr bool kSplit = false, kMinima = false;
  static constexpr int kBlock = 32, kBytes = 34, kGroup = 32, kOffset = 128, kMost = 255, kRaw = 2, kUnits = 2;
  static constexpr int kFifth = -1, kD = 0, kMin = 0;
  template <class V, class Raw>
  static V code(Raw raw, int) {
    return raw(0) ^ set8<V>(128);
  }
};

// Superblocks. Scales and minima of Q4_K and Q5_K: twelve bytes at `s`.
inline void k_scales(const std::byte* s, int16_t* scale, int16_t* min) {
  const uint32_t a = read32(s), b = read32(s + 4), c = read32(s + 8);
  const uint32_t words[4] = {a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u), b & 0x3f3f3f3fu,
                             (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u)};
  for (int j = 0; j < 8; ++j) {
    scale[j] = static_cast<int16_t>(words[j / 4] >> (8 * (j % 4)) & 255);
    min[j] = static_cast<int16_t>(words[2 + j / 4] >> (8 * (j % 4)) & 255);
  }
}
struct SuperBlock {
  static constexpr bool kSplit = false;
  static constexpr int kBlock = 256, kFifth = -1;
};
struct Q4K : SuperBlock {
  static constexpr WeightFormat kFormat = WeightFormat::kQ4_K;
  static constexpr bool kMinima = true;
  static constexpr int kBytes = 144, kGroup = 32, kOffset = 0, kMost = 15, kRaw = 16, kUnits = 8, kD = 0, kMin = 2;
  template <class V, class Raw>
  static V code(Raw raw, int j) {
    return nibbles(raw(j / 2), j % 2 == 1);
  }
  static void scales(const std::byte* b, int16_t* scale, int16_t* min) { k_scales(b + 4, scale, min); }
};
struct Q5K : SuperBlock {
  static constexpr WeightFormat kFormat = WeightFormat::kQ5_K;
  static constexpr bool kMinima = true;
  static constexpr int kBytes = 176, kGroup = 32, kOffset = 0, kMost = 31, kRaw = 16, kUnits = 10, kD = 0, kMin = 2;
  template <class V, class Raw>
  static V code(Raw raw, int j) {
    return nibbles(raw(1 + j / 2), j % 2 == 1) | one_bit(raw(0), j, 4);
  }
  static void scales(const std::byte* b, int16_t* scale, int16_t* min) { k_scales(b + 4, scale, min); }
};
struct Q6K : SuperBlock {
  static constexpr WeightFormat kFormat = WeightFormat::kQ6_K;
  static constexpr bool kMinima = false;
  static constexpr int kBytes = 210, kGroup = 16, kOffset = 32, kMost = 63, kRaw = 0, kUnits = 12, kD = 208, kMin = 0;
  template <class V, class Raw>
  static V code(Raw raw, int j) {
    const int n = j / 4, k = j % 4;
    return nibbles(raw(2 * n + k % 2), k >= 2) | two_bits(raw(4 + n), 2 * k, 4);
  }
  static void scales(const std::byte* b, int16_t* scale, int16_t*) {
    for (int g = 0; g < 16; ++g) scale[g] = static_cast<int8_t>(b[192 + g]);
  }
};
struct Q2K : SuperBlock {
  static constexpr WeightFormat kFormat = WeightFormat::kQ2_K;
  static constexpr bool kMinima = true;
  static constexpr int kBytes = 84, kGroup = 16, kOffset = 0, kMost = 3, kRaw = 16, kUnits = 4, kD = 80, kMin = 82;
  template <class V, class Raw>
  static V code(Raw raw, int j) {
    return two_bits(raw(j / 4), 2 * (j % 4), 0);
  }
  static void scales(const std::byte* b, int16_t* scale, int16_t* min) {
    for (int g = 0; g < 16; ++g) {
      scale[g] = static_cast<int16_t>(read8(b + g) & 15);
      min[g] = static_cast<int16_t>(read8(b + g) >> 4);
    }
  }
};
struct Q3K : SuperBlock {
  static constexpr WeightFormat kFormat = WeightFormat::kQ3_K;
  static constexpr bool kMinima = false;
  static constexpr int kBytes = 110, kGroup = 16, kOffset = 4, kMost = 7, kRaw = 0, kUnits = 6, kD = 108, kMin = 0;
  template <class V, class Raw>
  static V code(Raw raw, int j) {
    return two_bits(raw(1 + j / 4), 2 * (j % 4), 0) | one_bit(raw(0), j, 2);
  }
  static void scales(const std::byte* b, int16_t* scale, int16_t*) {
    const uint32_t low[2] = {read32(b + 96), read32(b + 100)}, high = read32(b + 104);
    for (int g = 0; g < 16; ++g) {
      const uint32_t four = low[g % 8 / 4] >> (8 * (g % 4) + g / 8 * 4) & 15;
      scale[g] = static_cast<int16_t>(static_cast<int>(four | (high >> (8 * (g % 4) + g / 4 * 2) & 3) << 4) - 32);
    }
  }
};
struct Iq4Xs : SuperBlock {
  static constexpr WeightFormat kFormat = WeightFormat::kIq4Xs;
  static constexpr bool kSplit = true, kMinima = false;
  static constexpr int kBytes = 136, kGroup = 32, kOffset = 128, kMost = 241, kRaw = 8, kUnits = 8, kD = 0, kMin = 0;
  template <class V>
  static V value(V nibble) {
    return look_up(iq4_table(), nibble);
  }
  static void scales(const std::byte* b, int16_t* scale, int16_t*) {
    const uint32_t high = read16(b + 2), low = read32(b + 4);
    for (int j = 0; j < 8; ++j) {
      scale[j] = static_cast<int16_t>(static_cast<int>((low >> (4 * j) & 15) | (high >> (2 * j) & 3) << 4) - 32);
    }
  }
};

// GGUF's MXFP4, for products in FP32 only: the doubled E2M1 value + 12, times the halved scale.
struct Mxfp4Gguf : SplitNibbles<WeightFormat::kMxfp4Block, 1, 17, -1, 12, false> {
  static constexpr int kMost = 24;
  template <class V>
  static V value(V nibble) {
    return look_up(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), nibble);
  }
};

// The types above, not those of single elements.
template <class Format>
constexpr bool kInBlocks = requires {
  Format::kBlock;
};

// A block's d as FP32.
template <class F>
inline float scale_of(const std::byte* block) {
  if constexpr (F::kFormat != WeightFormat::kMxfp4Block) return half_at(block + F::kD);
  const uint32_t e = static_cast<uint32_t>(read8(block));
  const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
  float scale;
  __builtin_memcpy(&scale, &bits, 4);
  return scale;
}

// body(format) for the type of an integer format.
template <class Body>
inline void with_format(WeightFormat format, Body body) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return body(Q4_0{});
    case WeightFormat::kQ4_1:
      return body(Q4_1{});
    case WeightFormat::kQ5_0:
      return body(Q5_0{});
    case WeightFormat::kQ5_1:
      return body(Q5_1{});
    case WeightFormat::kQ8_0:
      return body(Q8_0{});
    case WeightFormat::kIq4Nl:
      return body(Iq4Nl{});
    case WeightFormat::kQ2_K:
      return body(Q2K{});
    case WeightFormat::kQ3_K:
      return body(Q3K{});
    case WeightFormat::kQ4_K:
      return body(Q4K{});
    case WeightFormat::kQ5_K:
      return body(Q5K{});
    case WeightFormat::kQ6_K:
      return body(Q6K{});
    case WeightFormat::kIq4Xs:
      return body(Iq4Xs{});
    default:
      return;
  }
}

// Elements 32 j ... 32 j + 31 of one block as unsigned codes, in order.
template <class F>
inline __m256i codes_in_order(const std::byte* block, int j) {
  if constexpr (F::kSplit) {
    const __m128i both = load16_bytes(block + F::kRaw + 16 * j);
    const __m256i v = _mm256_set_m128i(_mm_srli_epi16(both, 4), both) & set8<__m256i>(15);
    if constexpr (F::kFifth >= 0) {
      const __m256i spread =
          _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(read32(block + F::kFifth))),
                              _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
      const __m256i bits = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
      return v | (_mm256_cmpeq_epi8(spread & bits, bits) & set8<__m256i>(16));
    }
    return F::template value<__m256i>(v);
  } else {
    return F::template code<__m256i>([&](int chunk) { return load32(block + F::kRaw + 32 * chunk); }, j);
  }
}

}  // namespace
}  // namespace weir::WEIR_ISA
