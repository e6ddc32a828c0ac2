// Vectors of the integer kernels: every dword belongs to an output of its own. AVX2, or AVX-512 with VNNI. Included by
// *_int8_cpu.cpp only.
#pragma once

#include "ops/linear/block_formats.h"

namespace weir::WEIR_ISA {
namespace {

#if defined(WEIR_ISA_avx512)
constexpr int kVecOuts = 16;
#else
constexpr int kVecOuts = 8;
#endif

// kVecOuts rows at equal distances. Every fourth has a pointer, from which x86 can address the next three: all fit in
// registers. (The compiler would rather keep sixteen offsets, most of them in memory.)
struct FileRows {
  static constexpr int kPointers = kVecOuts / 4;
  const std::byte* fourth[kPointers];
  int64_t stride, triple;
  FileRows(const std::byte* first, int64_t row_bytes) : stride(row_bytes), triple(3 * row_bytes) {
    for (int i = 0; i < kPointers; ++i) fourth[i] = first + 4 * i * row_bytes;
  }
  const std::byte* row(int o) const {
    const std::byte* p = fourth[o / 4];
    return o % 4 == 0 ? p : o % 4 == 1 ? p + stride : o % 4 == 2 ? p + 2 * stride : p + triple;
  }
  void advance(int64_t bytes) {
#pragma GCC unroll 4
    for (int i = 0; i < kPointers; ++i) {
      fourth[i] += bytes;
      asm("" : "+r"(fourth[i]));
    }
    asm("" : "+r"(stride), "+r"(triple));
  }
};

#if defined(WEIR_ISA_avx512)

constexpr bool kVnni = true;
constexpr int kVectors = 2;  // side by side, so that a broadcast of x serves two products
using IV = __m512i;
using FV = __m512;
inline IV zero_int() { return _mm512_setzero_si512(); }
inline IV load_int(const void* p) { return _mm512_loadu_si512(p); }
inline void store_int(void* p, IV a) { _mm512_storeu_si512(p, a); }
inline IV set32(int32_t a) { return _mm512_set1_epi32(a); }
inline IV srl32(IV a, int n) { return _mm512_srli_epi32(a, static_cast<unsigned>(n)); }
inline IV sll32(IV a, int n) { return _mm512_slli_epi32(a, static_cast<unsigned>(n)); }
inline IV sra32(IV a, int n) { return _mm512_srai_epi32(a, static_cast<unsigned>(n)); }
inline IV add32(IV a, IV b) { return _mm512_add_epi32(a, b); }
inline IV sub32(IV a, IV b) { return _mm512_sub_epi32(a, b); }
inline IV mul32(IV a, IV b) { return _mm512_mullo_epi32(a, b); }
// a + products of the signed 16-bit halves of b and c, added in pairs
inline IV add_pairs(IV a, IV b, IV c) { return _mm512_dpwssd_epi32(a, b, c); }
inline FV to_float(IV a) { return _mm512_cvtepi32_ps(a); }
inline FV set_float(float a) { return _mm512_set1_ps(a); }
inline FV load_float(const void* p) { return _mm512_loadu_ps(p); }
inline void store_float(void* p, FV a) { _mm512_storeu_ps(p, a); }
inline FV mul(FV a, FV b) { return _mm512_mul_ps(a, b); }
inline FV add(FV a, FV b) { return _mm512_add_ps(a, b); }
inline FV fma(FV a, FV b, FV c) { return _mm512_fmadd_ps(a, b, c); }
inline FV halves(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
// The lower or upper half of every dword as FP32.
inline FV low_halves(IV a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
inline FV high_halves(IV a) { return low_halves(_mm512_srli_epi32(a, 16)); }
inline void store_first(float* y, FV a, int64_t n) {
  _mm512_mask_storeu_ps(y, static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u), a);
}
// 16 bytes of each of sixteen rows, j-th in rows j, j + 4, j + 8, j + 12
[[gnu::always_inline]] inline IV rows_of_16(const FileRows& rows, int64_t offset, int j) {
  const auto load = [&](int o) { return load16_bytes(rows.row(o) + offset); };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load(j)), load(j + 4), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load(j + 8)), load(j + 12), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
inline IV unpack_low32(IV a, IV b) { return _mm512_unpacklo_epi32(a, b); }
inline IV unpack_high32(IV a, IV b) { return _mm512_unpackhi_epi32(a, b); }
inline IV unpack_low64(IV a, IV b) { return _mm512_unpacklo_epi64(a, b); }
inline IV unpack_high64(IV a, IV b) { return _mm512_unpackhi_epi64(a, b); }
// Bits 0..3 of every dword become bit 4 of its four bytes; the bits above are ignored.
inline IV spread_fifth_bits(IV bits) {
  const IV table =
      _mm512_setr_epi32(0, 0x10, 0x1000, 0x1010, 0x100000, 0x100010, 0x101000, 0x101010, 0x10000000, 0x10000010,
                        0x10001000, 0x10001010, 0x10100000, 0x10100010, 0x10101000, 0x10101010);
  return _mm512_permutexvar_epi32(bits, table);
}

#else

constexpr bool kVnni = false;
constexpr int kVectors = 1;
using IV = __m256i;
using FV = __m256;
inline IV zero_int() { return _mm256_setzero_si256(); }
inline IV load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_int(void* p, IV a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
inline IV set32(int32_t a) { return _mm256_set1_epi32(a); }
inline IV srl32(IV a, int n) { return _mm256_srli_epi32(a, n); }
inline IV sll32(IV a, int n) { return _mm256_slli_epi32(a, n); }
inline IV sra32(IV a, int n) { return _mm256_srai_epi32(a, n); }
inline IV add32(IV a, IV b) { return _mm256_add_epi32(a, b); }
inline IV sub32(IV a, IV b) { return _mm256_sub_epi32(a, b); }
inline IV mul32(IV a, IV b) { return _mm256_mullo_epi32(a, b); }
inline IV add_pairs(IV a, IV b, IV c) { return _mm256_add_epi32(a, _mm256_madd_epi16(b, c)); }
inline FV to_float(IV a) { return _mm256_cvtepi32_ps(a); }
inline FV set_float(float a) { return _mm256_set1_ps(a); }
inline FV load_float(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
inline void store_float(void* p, FV a) { _mm256_storeu_ps(static_cast<float*>(p), a); }
inline FV mul(FV a, FV b) { return _mm256_mul_ps(a, b); }
inline FV add(FV a, FV b) { return _mm256_add_ps(a, b); }
inline FV fma(FV a, FV b, FV c) { return _mm256_fmadd_ps(a, b, c); }
inline FV halves(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline FV low_halves(IV a) {
  const IV low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
inline FV high_halves(IV a) { return low_halves(_mm256_srli_epi32(a, 16)); }
inline void store_first(float* y, FV a, int64_t n) {
  if (n >= 8) return _mm256_storeu_ps(y, a);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(y, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane), a);
}
[[gnu::always_inline]] inline IV rows_of_16(const FileRows& rows, int64_t offset, int j) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load16_bytes(rows.row(j) + offset)),
                                 load16_bytes(rows.row(j + 4) + offset), 1);
}
inline IV unpack_low32(IV a, IV b) { return _mm256_unpacklo_epi32(a, b); }
inline IV unpack_high32(IV a, IV b) { return _mm256_unpackhi_epi32(a, b); }
inline IV unpack_low64(IV a, IV b) { return _mm256_unpacklo_epi64(a, b); }
inline IV unpack_high64(IV a, IV b) { return _mm256_unpackhi_epi64(a, b); }
inline IV spread_fifth_bits(IV bits) {
  const IV copies = _mm256_mullo_epi32(bits & set32(15), set32(0x00204081));
  return sll16(copies & set32(0x01010101), 4);
}

#endif

constexpr int kVecBytes = kVecOuts * 4;
constexpr int kPanelOuts = kVecOuts * kVectors;

// Dwords 0..3 of 16 bytes of every row, side by side: quad[t] holds dword t, output by output.
[[gnu::always_inline]] inline void transpose_16(const FileRows& rows, int64_t offset, IV (&quad)[4]) {
  const IV z0 = rows_of_16(rows, offset, 0), z1 = rows_of_16(rows, offset, 1);
  const IV z2 = rows_of_16(rows, offset, 2), z3 = rows_of_16(rows, offset, 3);
  const IV a0 = unpack_low32(z0, z1), a1 = unpack_high32(z0, z1);
  const IV b0 = unpack_low32(z2, z3), b1 = unpack_high32(z2, z3);
  quad[0] = unpack_low64(a0, b0);
  quad[1] = unpack_high64(a0, b0);
  quad[2] = unpack_low64(a1, b1);
  quad[3] = unpack_high64(a1, b1);
}

}  // namespace
}  // namespace weir::WEIR_ISA
