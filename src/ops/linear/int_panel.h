// A panel: the codes of kVecOuts outputs with four elements of each in a dword, ready to multiply with broadcast dwords
// of x. Built from the file's blocks once for all rows of x. Included by *_int8_cpu.cpp only.
#pragma once

#include "ops/linear/int_vec.h"

namespace weir::WEIR_ISA {
namespace {

constexpr int64_t kChunk = 512;  // elements of a panel: kPanelOuts of them are 16 KiB, which leaves room in L1
constexpr int64_t kMostBlocks = kChunk / 32;

// AVX2 multiplies unsigned by signed bytes with sums in 16 bits, which codes of 8 bits would overflow: those stay
// signed there.
template <class F>
constexpr bool kSignedCodes = !kVnni && F::kMost > 63;
template <class F>
constexpr int kBias = kSignedCodes<F> ? 0 : F::kOffset;

// Byte offsets within one block of a panel.
template <class F>
struct PanelBlock {
  static constexpr int kGroups = F::kBlock / F::kGroup;
  static constexpr int kScales = F::kBlock / 4 * kVecBytes;  // int32 by group; superblocks only
  static constexpr int kMinima = kScales + (F::kBlock == 256 ? kGroups * kVecBytes : 0);  // int16 pairs of groups
  static constexpr int kD = kMinima + (F::kBlock == 256 && F::kMinima ? kGroups / 2 * kVecBytes : 0);  // float
  static constexpr int kDmin = kD + kVecBytes;                                                         // float, -dmin
  static constexpr int kBytes = kDmin + kVecBytes;
};
constexpr int64_t kPanelBytes = 2 * PanelBlock<Q2K>::kBytes > kMostBlocks* PanelBlock<Q4_1>::kBytes
                                    ? 2 * PanelBlock<Q2K>::kBytes
                                    : kMostBlocks* PanelBlock<Q4_1>::kBytes;

template <class F>
inline void store_code(std::byte* to, IV code) {
  store_int(to, kSignedCodes<F> ? code ^ set8<IV>(F::kOffset) : code);
}

// Codes of one block at `offset` of every row.
template <class F>
inline void build_codes(const std::byte* const* row, int64_t offset, std::byte* panel) {
  IV raw[F::kUnits * 4];
#pragma GCC unroll 12
  for (int u = 0; u < F::kUnits; ++u) {
    IV quad[4];
    transpose_16(row, offset + F::kRaw + 16 * u, quad);
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) raw[u * 4 + t] = quad[t];
  }
  IV fifth = zero_int();
  if constexpr (F::kFifth >= 0) {
    alignas(64) uint32_t bits[kVecOuts];
    for (int o = 0; o < kVecOuts; ++o) bits[o] = read32(row[o] + offset + F::kFifth);
    fifth = load_int(bits);
  }
#pragma GCC unroll 8
  for (int j = 0; j < F::kBlock / 32; ++j) {
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t) {
      IV code;
      if constexpr (F::kSplit) {
        code = F::template value<IV>(nibbles(raw[j * 4 + t % 4], t >= 4));
        if constexpr (F::kFifth >= 0) code = code | spread_fifth_bits(srl32(fifth, 4 * t));
      } else {
        code = F::template code<IV>([&](int chunk) { return raw[chunk * 8 + t]; }, j);
      }
      store_code<F>(panel + (j * 8 + t) * kVecBytes, code);
    }
  }
}

template <class F>
inline void build_scales(const std::byte* block, int o, std::byte* panel) {
  using P = PanelBlock<F>;
  int16_t scale[16], min[16];
  F::scales(block, scale, min);
  int32_t* scales = reinterpret_cast<int32_t*>(panel + P::kScales) + o;
  int16_t* minima = reinterpret_cast<int16_t*>(panel + P::kMinima) + 2 * o;
#pragma GCC unroll 16
  for (int g = 0; g < P::kGroups; ++g) {
    scales[g * kVecOuts] = scale[g];
    if constexpr (F::kMinima) minima[g / 2 * 2 * kVecOuts + g % 2] = min[g];
  }
}

// Blocks [first, first + count) of the rows. The scalar part comes first, so that its stores have left the store
// buffer when vectors read them.
template <class F>
void build_panel(const std::byte* const* row, int64_t first, int64_t count, std::byte* panel) {
  using P = PanelBlock<F>;
  alignas(64) uint16_t d[kMostBlocks][kVecOuts];
  alignas(64) uint16_t dmin[kMostBlocks][kVecOuts];
  for (int o = 0; o < kVecOuts; ++o) {
    const std::byte* block = row[o] + first * F::kBytes;
    for (int64_t b = 0; b < count; ++b, block += F::kBytes) {
      d[b][o] = read16(block + F::kD);
      if constexpr (F::kMinima) dmin[b][o] = read16(block + F::kMin);
      if constexpr (F::kBlock == 256) build_scales<F>(block, o, panel + b * P::kBytes);
    }
  }
  for (int64_t b = 0; b < count; ++b) build_codes<F>(row, (first + b) * F::kBytes, panel + b * P::kBytes);
  for (int64_t b = 0; b < count; ++b) {
    store_float(panel + b * P::kBytes + P::kD, halves(d[b]));
    if constexpr (F::kMinima) {
      const FV sign = set_float(F::kBlock == 256 ? -1.f : 1.f);  // the minimum of Q4_1 and Q5_1 is added
      store_float(panel + b * P::kBytes + P::kDmin, mul(sign, halves(dmin[b])));
    }
  }
}

}  // namespace
}  // namespace weir::WEIR_ISA
