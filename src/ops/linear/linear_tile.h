// The inner loops of linear for weights whose elements widen one by one (F32, F16, BF16, and panels expanded to FP32):
// a tile of NO outputs x NR rows keeps its NO * NR accumulators in registers while k runs. Included by linear_cpu.cpp
// only.
#pragma once

#include "ops/linear/linear_fold.h"

namespace weir::WEIR_ISA {
namespace {

struct F32Row {
  const float* p;
  explicit F32Row(const std::byte* data) : p(reinterpret_cast<const float*>(data)) {}
  V16 load(int64_t k) const { return load16(p + k); }
  V16 load_first(int64_t k, int64_t n) const { return load16_first(p + k, n); }
  static constexpr int64_t kBytes = 4;
};

struct F16Row {
  const uint16_t* p;
  explicit F16Row(const std::byte* data) : p(reinterpret_cast<const uint16_t*>(data)) {}
  V16 load(int64_t k) const { return load16_f16(p + k); }
  V16 load_first(int64_t k, int64_t n) const { return load16_f16_first(p + k, n); }
  static constexpr int64_t kBytes = 2;
};

struct Bf16Row {
  const uint16_t* p;
  explicit Bf16Row(const std::byte* data) : p(reinterpret_cast<const uint16_t*>(data)) {}
  V16 load(int64_t k) const { return load16_bf16(p + k); }
  V16 load_first(int64_t k, int64_t n) const { return load16_bf16_first(p + k, n); }
  static constexpr int64_t kBytes = 2;
};

// Rows of x, or outputs of a weight, in equal distances.
struct Strided {
  const std::byte* data;
  int64_t stride;  // bytes
};

// Which part of the depth a tile computes: the sums start at zero or at `saved`, and end folded in y or in `saved`.
struct Stage {
  bool first = true;
  bool last = true;
};

// One vector of products for the whole tile. The smaller side is held in registers.
template <int NO, int NR, class LoadW, class LoadX>
inline void fma_step(V16 (&acc)[NO][NR], LoadW load_w, LoadX load_x) {
  if constexpr (NO > NR) {
    V16 x[NR];
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) x[r] = load_x(r);
#pragma GCC unroll 8
    for (int o = 0; o < NO; ++o) {
      const V16 w = load_w(o);
#pragma GCC unroll 8
      for (int r = 0; r < NR; ++r) acc[o][r] = fma(w, x[r], acc[o][r]);
    }
  } else {
    V16 w[NO];
#pragma GCC unroll 8
    for (int o = 0; o < NO; ++o) w[o] = load_w(o);
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) {
      const V16 x = load_x(r);
#pragma GCC unroll 8
      for (int o = 0; o < NO; ++o) acc[o][r] = fma(w[o], x, acc[o][r]);
    }
  }
}

// Outputs o * weights.stride apart; those from `outs` on repeat the last one and are not stored.
template <class Row, int NO, int NR>
void multiply_tile(Strided weights, const float* x, int64_t x_stride, int64_t depth, Stage stage, float* saved,
                   float* y, int64_t y_stride, int64_t outs) {
  const std::byte* w[NO];
  for (int o = 0; o < NO; ++o) w[o] = weights.data + (o < outs ? o : outs - 1) * weights.stride;
  V16 acc[NO][NR];
#pragma GCC unroll 8
  for (int o = 0; o < NO; ++o) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) acc[o][r] = stage.first ? zero16() : load16(saved + (o * NR + r) * 16);
  }
  int64_t k = 0;
  for (; k + 16 <= depth; k += 16) {
    fma_step<NO, NR>(
        acc, [&](int o) { return Row(w[o]).load(k); }, [&](int r) { return load16(x + r * x_stride + k); });
  }
  if (k < depth) {
    const int64_t n = depth - k;
    fma_step<NO, NR>(
        acc, [&](int o) { return Row(w[o]).load_first(k, n); },
        [&](int r) { return load16_first(x + r * x_stride + k, n); });
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
