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
[[gnu::always_inline]] inline void store_code(std::byte* to, IV code) {
  store_int(to, kSignedCodes<F> ? code ^ set8<IV>(F::kOffset) : code);
}

// Codes of the block that every row starts with.
template <class F>
[[gnu::always_inline]] inline void build_codes(const FileRows& rows, std::byte* panel) {
  IV raw[F::kUnits * 4];
#pragma GCC unroll 12
  for (int u = 0; u < F::kUnits; ++u) {
    IV quad[4];
    transpose_16(rows, F::kRaw + 16 * u, quad);
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) raw[u * 4 + t] = quad[t];
  }
  IV fifth = zero_int();
  if constexpr (F::kFifth >= 0) {
    alignas(64) uint32_t bits[kVecOuts];
    for (int o = 0; o < kVecOuts; ++o) bits[o] = read32(rows.row(o) + F::kFifth);
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
[[gnu::always_inline]] inline void build_scales(const std::byte* block, int o, std::byte* panel) {
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

// What comes after the rows in work, fetched as fast as those are consumed: rows are short and many, and the
// processor's own prefetchers follow each row and stop at its end.
struct Ahead {
  const std::byte* far = nullptr;   // into L2: the next kPanelOuts rows, as they lie; none: null
  const std::byte* near = nullptr;  // into L1: the next kVecOuts rows of the panel's width, `near_bytes` each
  int64_t near_stride = 0;
  int64_t near_bytes = 0;
  int64_t near_rows = 0;  // to fetch per block
  int64_t near_left = 0;

  void set_near(const std::byte* first, int64_t stride, int64_t bytes, int64_t blocks) {
    near = first;
    near_stride = stride;
    near_bytes = bytes;
    near_rows = (kVecOuts + blocks - 1) / blocks;
    near_left = kVecOuts;
  }
  // When a block of every row has been read.
  [[gnu::always_inline]] void fetch(int64_t block_bytes) {
    if (far != nullptr) {
      for (int64_t i = 0; i < kVecOuts * block_bytes; i += 64) __builtin_prefetch(far + i, 0, 2);
      far += kVecOuts * block_bytes;
    }
    for (int64_t n = 0; n < near_rows && near_left > 0; ++n, --near_left, near += near_stride) {
      for (int64_t i = 0; i < near_bytes; i += 64) __builtin_prefetch(near + i, 0, 3);
    }
  }
};

// The first `count` blocks of the rows. Halves are copied by scalar moves, which cost no shuffles, and read back as
// vectors at the end, when their stores have left the store buffer.
template <class F>
void build_panel(FileRows rows, int64_t count, std::byte* panel, Ahead& ahead) {
  using P = PanelBlock<F>;
  static_assert(!F::kMinima || F::kMin == F::kD + 2);
  Ahead next = ahead;
  alignas(64) uint32_t scales[kMostBlocks][kVecOuts];  // d, and dmin above
  for (int64_t b = 0; b < count; ++b, rows.advance(F::kBytes)) {
#pragma GCC unroll 16
    for (int o = 0; o < kVecOuts; ++o) {
      const std::byte* d = rows.row(o) + F::kD;
      scales[b][o] = F::kMinima ? read32(d) : read16(d);
    }
    if constexpr (F::kBlock == 256) {
      for (int o = 0; o < kVecOuts; ++o) build_scales<F>(rows.row(o), o, panel + b * P::kBytes);
    }
    build_codes<F>(rows, panel + b * P::kBytes);
    next.fetch(F::kBytes);
  }
  ahead = next;
  for (int64_t b = 0; b < count; ++b) {
    const IV both = load_int(scales[b]);
    store_float(panel + b * P::kBytes + P::kD, low_halves(both));
    if constexpr (F::kMinima) {
      const FV sign = set_float(F::kBlock == 256 ? -1.f : 1.f);  // the minimum of Q4_1 and Q5_1 is added
      store_float(panel + b * P::kBytes + P::kDmin, mul(sign, high_halves(both)));
    }
  }
}

}  // namespace
}  // namespace weir::WEIR_ISA
