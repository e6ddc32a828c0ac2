// What a layer of Kimi Delta Attention does between its projections, as one op for GPUs in auto mode: short convolution
// and SiLU of q, k and v, L2 norm of q and k, decay gate, beta, the delta rule, gated RMS norm of the result. The CPU,
// the f32 mode and other sizes run the ops short_conv, norm, gate and delta_rule one by one.
// Papers: Kimi Linear (arXiv:2510.26692); the chunk form of the rule is derived there.
//
//   q, k, v, f, gate [rows, heads, 128]   the projections' results: inputs of the convolutions, of the decay, of the
//                                         output norm; BF16        beta_logit [rows, heads]   FP32
//   out [rows, heads, 128]                BF16
//
// Numeric specification, per head: the same bits for every row, whoever computes it. exp(x) = ex2.approx(x * log2 e),
// sig(x) = rcp.approx(1 + exp(-x)) and rsqrt are the instructions on FP32; bf16() rounds to nearest even; "sum128" adds
// in FP32: four neighbours by fused multiply-adds, ascending, then lanes 16, 8, 4, 2, 1 apart.
//   inputs     of q, k, v:  c = four taps, oldest first: a product, then fused multiply-adds, rows before
//              position 0 being +0;  s = c * sig(c)
//   k, q, v    k = s * r, q = s * (r * 128^-1/2), r = rsqrt(sum128(s^2) + l2_eps);  v = bf16(s)
//   decay      c = -(a log2 e);  g = (lower_bound log2 e) * rcp.approx(1 + ex2.approx(fma(f, c, dt_bias c))) (bounded),
//              -(a log2 e) * softplus(f + dt_bias) (unbounded; kda_cuda.cuh)
//   beta       sig(beta_logit)
// Chunk = 16 positions at absolute multiples, i = this row, j = earlier rows of the chunk or this one, d = key channel,
// c = value column, S = the anchor at the chunk's start:
//   G_i = G_{i-1} + g_i, FP32, from 0 at the chunk's start;  2^x is ex2.approx
//   kt_i = bf16(k_i 2^G_i), qt_i = bf16(q_i 2^G_i)
//   P_i[c] = sum_d kt_i[d] hi(S[d][c]),  Q_i[c] the same with qt_i
//   bounded:    kn_j = bf16(k_j 2^-G_j), below e^80 since G > -80 log2 e
//               Lb_ij = beta_i (kt_i . kn_j);  A_ij = qt_i . kn_j
//   unbounded:  k and q are rounded to BF16 before any use. R = 0 while G_{i-1} > -64 in every channel. Else, for j <
//   i,
//               let b be the highest bit in which i and j differ and m the multiple of 2^b with j < m <= i; R =
//               G_{m-1}, so that no exponent is positive: Lb_ij = beta_i (bf16(k_i 2^(G_i - R)) . bf16(k_j 2^(R -
//               G_j))) A_ij = the same with q_i, without beta;  A_ii = sum128(q_i k_i)
//   T = (1 + Lb)^-1, FP32: T_ii = 1, T_ij = sum_{j<=m<i} (-Lb_im) T_mj;  AT_ij = bf16(sum_{j<=m<=i} A_im T_mj)
//               fused multiply-adds from +0, m ascending
//   w_i[c] = bf16(beta_i (v_i[c] - P_i[c]))
//   o_i[c] = Q_i[c] + sum_j AT_ij w_j[c]                                one tensor-core step of 16 rows, j > i being 0
//   u_m[c] = bf16(sum_j bf16(T_mj) w_j[c])                              one tensor-core step from zero
//   anchor:     S'[d][c] = 2^G_15[d] S[d][c] + sum_m kd_m[d] u_m[c]  one tensor-core step
//               kd_j = bf16(kn_j 2^G_15); unbounded, unless G_15 > -64 in every channel: bf16(k_j 2^(G_15 - G_j))
//   out = bf16(((o * r) * w) * sig(gate)), r = rsqrt(ss / 128 + eps);  ss: 16 columns at a time o[x]^2 + o[x + 8]^2,
//   then
//               over x at distances 1, 2, 4, then the eight groups ascending
// Products over d are tensor-core chains from zero, 8 steps of 16 channels, ascending. Within a step, channels 4c ..
// 4c+3 take the operand's places 2c, 2c+1, 2c+8, 2c+9, so that a thread's channels are neighbours in memory.
//
// State. The anchor keeps S in two planes of 16 bits: hi = S rounded to BF16, ties away from zero, and lo = the rest:
// bits(S) = (hi << 16) + lo with lo signed, exactly. Rows read hi alone; a new anchor is made from both. (With ties to
// even, S = hi + half a step and hi - half a step would both belong to an even hi: one value too many for lo.)
//   anchor, per head:  hi plane, lo plane, each [16 columns (8)][16 channels (8)][lane (32)] 16 bytes, an A operand of
//                      the tensor core; then the convolutions' window, [q, k, v][3 rows][128] BF16
//   journal page, per head:  kn or k [16 rows][128] BF16, w the same, G [16][128] FP32, [q, k, v][16][128] BF16
//                            inputs, T [16][16] FP32
// A page's head is contiguous: this op's PageField is read as 16 * row_bytes bytes, not row by row.
//
// Spans start anywhere; where a row lies at a multiple of 16 above span.anchor_position, the next anchor is made in the
// same pass, and stored if span.anchor_writes has it. Rows are stored where the page table has a page.
// Spans of one row take one launch (a block for each head; a chunk's start costs it the lo plane and both new planes);
// longer ones two: what needs no state, for all chunks at once, and beside it, chunk after chunk, S in registers.
#pragma once

#include <memory>
#include <string>

#include "base/step_view.h"
#include "device/device.h"
#include "ops/bound_op.h"

namespace weir {

// [rows, ...] on the device, BF16: row r at data + r * stride. Address and stride: multiples of 8 numbers.
struct KdaRows {
  const uint16_t* data = nullptr;
  int64_t stride = 0;
};

struct KdaLayerArgs {
  bool bounded = true;
  float lower_bound = -5;  // in [-5, 0): sixteen steps must stay within e^80
  int64_t heads = 0;
  float l2_eps = 0, norm_eps = 0;
  // On the host.
  const float* q_conv = nullptr;  // [heads, 128, 4], last tap = current row
  const float* k_conv = nullptr;
  const float* v_conv = nullptr;
  const float* a = nullptr;            // [heads]
  const float* dt_bias = nullptr;      // [heads, 128]
  const float* norm_weight = nullptr;  // [128]
  PageField journal;                   // row: kda_layer_journal_row_bytes()
  AnchorField state;                   // kda_layer_anchor_bytes()
  KdaRows q, k, v, f, gate;
  const float* beta_logit = nullptr;
  int64_t beta_logit_stride = 0;
  uint16_t* out = nullptr;  // none of the inputs
  int64_t out_stride = 0;
  int64_t workspace_bytes = int64_t{256} << 20;  // for chunks between the two launches; longer steps take more launches
};

inline constexpr int64_t kKdaHeadDim = 128;
inline constexpr int64_t kKdaTaps = 4;

int64_t kda_layer_journal_row_bytes(int64_t heads);
int64_t kda_layer_anchor_bytes(int64_t heads);

// Error on the CPU.
std::unique_ptr<BoundOp> bind_kda_layer(Device& device, std::string name, const KdaLayerArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_kda_layer_cuda(CudaDevice& device, std::string name,
                                                           const KdaLayerArgs& args);

}  // namespace weir
