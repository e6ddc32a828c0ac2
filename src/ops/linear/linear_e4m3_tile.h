// Few rows times FP8 weights as they lie in the file. Included by linear_cpu.cpp only.
#pragma once

#include "ops/linear/linear_e4m3.h"
#include "ops/linear/linear_tile.h"

namespace weir::WEIR_ISA {
namespace {

#if defined(WEIR_ISA_avx512)
inline Reg load_reg_e4m3(const uint8_t* p) { return load16_e4m3(p).v; }
inline Reg mul_reg(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
inline Reg set_reg(float a) { return _mm512_set1_ps(a); }
#else
inline Reg load_reg_e4m3(const uint8_t* p) { return load8_e4m3(p); }
inline Reg mul_reg(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
inline Reg set_reg(float a) { return _mm256_set1_ps(a); }
#endif

// NO outputs from `o`, of which `outs` exist and are written, times NR rows.
template <int NO, int NR>
void multiply_e4m3(const WeightView& w, int64_t o, int64_t outs, const float* x, int64_t x_stride, float* y,
                   int64_t y_stride, const std::byte* next) {
  const FileRows<NO> rows(w.data + o * w.row_bytes, w.row_bytes, outs);
  const std::byte* scales[NO];
  for (int i = 0; i < NO; ++i) scales[i] = e4m3_scale_row(w, o + (i < outs ? i : outs - 1));
  XRows xs(x, x_stride);
  Ahead<NO * 16> ahead{next};
  V16 acc[NO][NR];
#pragma GCC unroll 8
  for (int i = 0; i < NO; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) acc[i][r] = zero16();
  }
  float factor[NO];
  for (int64_t k = 0; k < w.in;) {
    const int64_t block = k / w.scale_cols;
    const int64_t end = (block + 1) * w.scale_cols < w.in ? (block + 1) * w.scale_cols : w.in;
    for (int i = 0; i < NO; ++i) factor[i] = e4m3_factor(w.scale_format, scales[i], block);
    for (; k + 16 <= end; k += 16) {
#pragma GCC unroll 2
      for (int i = 0; i < kParts; ++i) {
        fma_part<NO, NR>(
            acc, i,
            [&](int n) {
              return mul_reg(load_reg_e4m3(rows.template at<uint8_t>(n, k + i * kRegLanes)), set_reg(factor[n]));
            },
            [&](int r) { return load_reg(xs.row(r) + i * kRegLanes); });
      }
      xs.advance(16);
      ahead.fetch();
    }
    if (k < end) {  // the row's last elements
      const int64_t n_left = end - k;
#pragma GCC unroll 2
      for (int i = 0; i < kParts; ++i) {
        fma_part<NO, NR>(
            acc, i,
            [&](int n) {
              V16 v = load16_e4m3_first(rows.template at<uint8_t>(n, k), n_left) * set16(factor[n]);
              return part(v, i);
            },
            [&](int r) {
              V16 v = load16_first(xs.row(r), n_left);
              return part(v, i);
            });
      }
      k = end;
    }
  }
  store_folded_tile<NO, NR>(acc, y, y_stride, outs);
}

}  // namespace
}  // namespace weir::WEIR_ISA
