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

// Codes of the block that every row starts with: sink(q, code) for its dwords in order. In registers, so that few rows
// of x can be multiplied on the way.
template <class F, class Sink>
[[gnu::always_inline]] inline void each_code(const FileRows& rows, Sink sink) {
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
#pragma GCC unroll 16
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
      sink(j * 8 + t, kSignedCodes<F> ? code ^ set8<IV>(F::kOffset) : code);
    }
  }
}

// Scale and minimum of group g as dwords, from the four dwords that hold them (at kScaleWords in the block).
template <class F>
constexpr int kScaleWords = F::kFormat == WeightFormat::kQ6_K   ? 192
                            : F::kFormat == WeightFormat::kQ3_K ? 92
                                                                : 0;

inline IV byte_of(IV word, int i) { return srl32(word, 8 * i) & set32(255); }

template <class F>
[[gnu::always_inline]] inline IV scale_of_group(const IV (&w)[4], int g) {
  if constexpr (F::kFormat == WeightFormat::kQ4_K || F::kFormat == WeightFormat::kQ5_K) {
    if (g < 4) return byte_of(w[1], g) & set32(63);
    return (byte_of(w[3], g - 4) & set32(15)) | (srl32(w[1], 8 * (g - 4) + 2) & set32(48));
  } else if constexpr (F::kFormat == WeightFormat::kQ6_K) {
    return sra32(sll32(w[g / 4], 24 - 8 * (g % 4)), 24);
  } else if constexpr (F::kFormat == WeightFormat::kQ2_K) {
    return srl32(w[g / 4], 8 * (g % 4)) & set32(15);
  } else if constexpr (F::kFormat == WeightFormat::kQ3_K) {
    const IV low = srl32(w[1 + g % 8 / 4], 8 * (g % 4) + g / 8 * 4) & set32(15);
    const IV high = srl32(w[3], 8 * (g % 4) + g / 4 * 2) & set32(3);
    return sub32(low | sll32(high, 4), set32(32));
  } else {
    static_assert(F::kFormat == WeightFormat::kIq4Xs);
    const IV high = srl32(w[0], 16 + 2 * g) & set32(3);
    return sub32((srl32(w[1], 4 * g) & set32(15)) | sll32(high, 4), set32(32));
  }
}
template <class F>
[[gnu::always_inline]] inline IV min_of_group(const IV (&w)[4], int g) {
  if constexpr (F::kFormat == WeightFormat::kQ2_K) return srl32(w[g / 4], 8 * (g % 4) + 4) & set32(15);
  if (g < 4) return byte_of(w[2], g) & set32(63);
  return (srl32(w[3], 8 * (g - 4) + 4) & set32(15)) | (srl32(w[2], 8 * (g - 4) + 2) & set32(48));
}

template <class F>
[[gnu::always_inline]] inline void build_scales(const FileRows& rows, std::byte* panel) {
  using P = PanelBlock<F>;
  IV words[4];
  transpose_16(rows, kScaleWords<F>, words);
#pragma GCC unroll 16
  for (int g = 0; g < P::kGroups; ++g) store_int(panel + P::kScales + g * kVecBytes, scale_of_group<F>(words, g));
  if constexpr (F::kMinima) {
#pragma GCC unroll 8
    for (int g = 0; g < P::kGroups; g += 2) {
      const IV pair = min_of_group<F>(words, g) | sll32(min_of_group<F>(words, g + 1), 16);
      store_int(panel + P::kMinima + g / 2 * kVecBytes, pair);
    }
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
  // Called evenly in the course of the work; all calls for a panel add up to its bytes.
  [[gnu::always_inline]] void fetch_far(int64_t bytes) {
    if (far == nullptr) return;
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(far + i, 0, 2);
    far += bytes;
  }
  // When a block of every row has been read.
  [[gnu::always_inline]] void fetch_near() {
    for (int64_t n = 0; n < near_rows && near_left > 0; ++n, --near_left, near += near_stride) {
      for (int64_t i = 0; i < near_bytes; i += 64) __builtin_prefetch(near + i, 0, 3);
    }
  }
};

// d alone, or d below and dmin above.
template <bool kMinima>
struct HalvesType {
  using Type = uint16_t;
};
template <>
struct HalvesType<true> {
  using Type = uint32_t;
};

// d and dmin of `count` blocks of every row into the blocks of a panel. Scalar moves cost no shuffles; they are read
// back as vectors when their stores have left the store buffer. Takes about a quarter of a panel's time.
template <class F>
inline void build_halves(FileRows rows, int64_t count, std::byte* panel, Ahead& next) {
  using P = PanelBlock<F>;
  static_assert(!F::kMinima || F::kMin == F::kD + 2);
  using Halves = typename HalvesType<F::kMinima>::Type;
  alignas(64) Halves scales[kMostBlocks][kVecOuts];
  for (int64_t b = 0; b < count; ++b, rows.advance(F::kBytes)) {
    next.fetch_far(kVecOuts * F::kBytes / 4);
#pragma GCC unroll 16
    for (int o = 0; o < kVecOuts; ++o) {
      const std::byte* d = rows.row(o) + F::kD;
      if constexpr (F::kMinima) {
        scales[b][o] = read32(d);
      } else {
        scales[b][o] = read16(d);
      }
    }
  }
  for (int64_t b = 0; b < count; ++b) {
    if constexpr (F::kMinima) {
      const IV both = load_int(scales[b]);
      const FV sign = set_float(F::kBlock == 256 ? -1.f : 1.f);  // the minimum of Q4_1 and Q5_1 is added
      store_float(panel + b * P::kBytes + P::kD, low_halves(both));
      store_float(panel + b * P::kBytes + P::kDmin, mul(sign, high_halves(both)));
    } else {
      store_float(panel + b * P::kBytes + P::kD, halves(scales[b]));
    }
  }
}

template <class F>
[[gnu::noinline]] void build_panel(FileRows rows, int64_t count, std::byte* panel, Ahead& ahead) {
  using P = PanelBlock<F>;
  Ahead next = ahead;
  build_halves<F>(rows, count, panel, next);
  for (int64_t b = 0; b < count; ++b, rows.advance(F::kBytes), panel += P::kBytes) {
    if constexpr (F::kBlock == 256) build_scales<F>(rows, panel);
    each_code<F>(rows, [&](int q, IV code) { store_int(panel + q * kVecBytes, code); });
    next.fetch_far(kVecOuts * F::kBytes - kVecOuts * F::kBytes / 4);
    next.fetch_near();
  }
  ahead = next;
}

}  // namespace
}  // namespace weir::WEIR_ISA
