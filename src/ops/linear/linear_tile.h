// The inner loops of linear for weights whose elements widen one by one (F32, F16, BF16, and panels expanded to FP32):
// a tile of NO outputs x NR rows keeps its NO * NR accumulators in registers while k runs. Included by linear_cpu.cpp
// only.
#pragma once

#include "ops/linear/linear_blocks.h"
#include "ops/linear/linear_fold.h"

namespace weir::WEIR_ISA {
namespace {

// A V16 is worked on register by register, so that AVX2 needs only half of the operands at a time.
#if defined(WEIR_ISA_avx512)
using Reg = __m512;
constexpr int kParts = 1;
inline Reg load_reg(const float* p) { return _mm512_loadu_ps(p); }
inline void store_reg(float* p, Reg a) { _mm512_storeu_ps(p, a); }
inline Reg load_reg_bf16(const uint16_t* p) { return load16_bf16(p).v; }
inline Reg load_reg_f16(const uint16_t* p) { return load16_f16(p).v; }
inline Reg fma_reg(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
inline Reg& part(V16& a, int) { return a.v; }
// Keeps a value in a register: the compiler would load it again for every use.
inline void hold(Reg& a) { asm("" : "+v"(a)); }
#else
using Reg = __m256;
constexpr int kParts = 2;
inline Reg load_reg(const float* p) { return _mm256_loadu_ps(p); }
inline void store_reg(float* p, Reg a) { _mm256_storeu_ps(p, a); }
inline Reg load_reg_bf16(const uint16_t* p) {
  return widen8_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Reg load_reg_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Reg fma_reg(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
inline Reg& part(V16& a, int i) { return i == 0 ? a.lo : a.hi; }
inline void hold(Reg& a) { asm("" : "+x"(a)); }
#endif
constexpr int kRegLanes = 16 / kParts;

struct F32 {
  using Element = float;
  static Reg load(const float* p) { return load_reg(p); }
  static V16 load_first(const float* p, int64_t n) { return load16_first(p, n); }
};
struct F16 {
  using Element = uint16_t;
  static Reg load(const uint16_t* p) { return load_reg_f16(p); }
  static V16 load_first(const uint16_t* p, int64_t n) { return load16_f16_first(p, n); }
};
struct Bf16 {
  using Element = uint16_t;
  static Reg load(const uint16_t* p) { return load_reg_bf16(p); }
  static V16 load_first(const uint16_t* p, int64_t n) { return load16_bf16_first(p, n); }
};

// NO rows of weights in a file, from `first` on. Those from `outs` on repeat the last one; their sums are not stored.
template <int NO>
struct FileRows {
  static constexpr bool kFetchAhead = true;
  const std::byte* row[NO];
  FileRows(const std::byte* first, int64_t row_bytes, int64_t outs) {
    for (int o = 0; o < NO; ++o) row[o] = first + (o < outs ? o : outs - 1) * row_bytes;
  }
  template <class Element>
  const Element* at(int o, int64_t k) const {
    return reinterpret_cast<const Element*>(row[o]) + k;
  }
};

// While a tile is computed, the memory of the next one is fetched in file order, as many bytes per step as the tile
// consumes: the processor's own prefetchers stop at the end of each row. Into L2,
// for a tile may be larger than L1.
template <int kBytesPerStep>
struct Ahead {
  const std::byte* p;
  void fetch() {
#pragma GCC unroll 8
    for (int i = 0; i < kBytesPerStep; i += 64) __builtin_prefetch(p + i, 0, 2);
    p += (kBytesPerStep + 63) / 64 * 64;
  }
};
template <>
struct Ahead<0> {
  const std::byte* p;
  void fetch() {}
};

struct PanelRows {
  static constexpr bool kFetchAhead = false;
  const float* first;
  template <class Element>
  const float* at(int o, int64_t k) const {
    return first + o * linear_blocks::kPanelStride + k;
  }
};

// Up to eight rows of x. Multiples of the stride that x86 addresses can't form are held, instead of a pointer per row.
struct XRows {
  const std::byte* p;
  int64_t one, three, five, seven;  // bytes
  XRows(const float* x, int64_t stride)
      : p(reinterpret_cast<const std::byte*>(x)), one(stride * 4), three(one * 3), five(one * 5), seven(one * 7) {}
  const float* row(int r) const { return reinterpret_cast<const float*>(p + offset(r)); }
  int64_t offset(int r) const {
    switch (r) {
      case 0:
        return 0;
      case 1:
        return one;
      case 2:
        return one * 2;
      case 3:
        return three;
      case 4:
        return one * 4;
      case 5:
        return five;
      case 6:
        return three * 2;
      default:
        return seven;
    }
  }
  void advance(int64_t elements) {
    p += elements * 4;
    asm("" : "+r"(p));
  }
};

// Which part of the depth a tile computes: the sums start at zero or at `saved`, and end folded in y or in `saved`.
struct Stage {
  bool first;
  bool last;
};
struct WholeDepth {
  static constexpr bool first = true;
  static constexpr bool last = true;
};

// Products of one part of the tile. The smaller side is held in registers, the other passes by.
template <int NO, int NR, class LoadW, class LoadX>
inline void fma_part(V16 (&acc)[NO][NR], int i, LoadW load_w, LoadX load_x) {
  if constexpr (NO > NR) {
    Reg x[NR];
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) x[r] = load_x(r);
#pragma GCC unroll 8
    for (int o = 0; o < NO; ++o) {
      Reg w = load_w(o);
      if constexpr (NR > 1) hold(w);
#pragma GCC unroll 8
      for (int r = 0; r < NR; ++r) part(acc[o][r], i) = fma_reg(w, x[r], part(acc[o][r], i));
    }
  } else {
    Reg w[NO];
#pragma GCC unroll 8
    for (int o = 0; o < NO; ++o) w[o] = load_w(o);
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) {
      Reg x = load_x(r);
      if constexpr (NO > 1) hold(x);
#pragma GCC unroll 8
      for (int o = 0; o < NO; ++o) part(acc[o][r], i) = fma_reg(w[o], x, part(acc[o][r], i));
    }
  }
}

// Weights: FileRows or PanelRows. saved: NO * NR * 16 floats. y: the first `outs` outputs of NR rows are written.
template <class Format, int NO, int NR, class Weights, class StageType>
void multiply_tile(const Weights weights, const float* x, int64_t x_stride, int64_t depth, StageType stage,
                   float* saved, float* y, int64_t y_stride, int64_t outs, const std::byte* next) {
  using Element = typename Format::Element;
  XRows xs(x, x_stride);
  Ahead<Weights::kFetchAhead ? NO * 16 * int{sizeof(Element)} : 0> ahead{next};
  V16 acc[NO][NR];
#pragma GCC unroll 8
  for (int o = 0; o < NO; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) acc[o][r] = stage.first ? zero16() : load16(saved + (o * NR + r) * 16);
  }
  int64_t k = 0;
  for (; k + 16 <= depth; k += 16) {
#pragma GCC unroll 2
    for (int i = 0; i < kParts; ++i) {
      fma_part<NO, NR>(
          acc, i, [&](int o) { return Format::load(weights.template at<Element>(o, k + i * kRegLanes)); },
          [&](int r) { return load_reg(xs.row(r) + i * kRegLanes); });
    }
    xs.advance(16);
    ahead.fetch();
  }
  if (k < depth) {
    const int64_t n = depth - k;
#pragma GCC unroll 2
    for (int i = 0; i < kParts; ++i) {
      fma_part<NO, NR>(
          acc, i,
          [&](int o) {
            V16 w = Format::load_first(weights.template at<Element>(o, k), n);
            return part(w, i);
          },
          [&](int r) {
            V16 v = load16_first(xs.row(r), n);
            return part(v, i);
          });
    }
  }
  if (stage.last) {
    store_folded_tile<NO, NR>(acc, y, y_stride, outs);
    return;
  }
#pragma GCC unroll 8
  for (int o = 0; o < NO; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) store16(saved + (o * NR + r) * 16, acc[o][r]);
  }
}

}  // namespace
}  // namespace weir::WEIR_ISA
