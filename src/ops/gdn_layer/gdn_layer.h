// What a layer of Gated DeltaNet (Qwen3-Next, Qwen3.5) does between its projections, as one op for GPUs in auto mode:
// short convolution and SiLU of q, k and v, L2 norm of q and k, decay gate, beta, the delta rule, SiLU-gated RMS norm
// of the result. The CPU, the f32 mode and other sizes run the ops short_conv, norm, gate and delta_rule one by one.
// Paper: Gated Delta Networks (arXiv:2412.06464).
//
//   qkv [rows, (2 key_heads + heads) 128]   the projections' results: q of all key heads, k, then v of all heads
//   gate, out [rows, heads, 128];  these three BF16        a_logit, beta_logit [rows, heads]  FP32
//
// Numeric specification: the same bits for every row, whoever computes it. Functions and sums not defined here are
// those of kda_layer.h. Per head, q and k of its key head:
//   x of q, k, v:  c = sum of four taps, oldest first;  s = c * sig(c);  rows before position 0 are +0
//   k = bf16(s * r), q = bf16(s * (r * 128^-1/2)) with r = 1 / sqrt(sum128(s^2) + l2_eps);  v = bf16(s)
//   beta = sig(beta_logit);  g = -(a * softplus(a_logit + dt_bias))
// Chunk = 16 positions at absolute multiples, i = this row, j = earlier rows of the chunk or this one, d = key channel,
// c = value column, S = the anchor at the chunk's start:
//   G_i = G_{i-1} + g_i, FP32, from 0 at the chunk's start;  e_i = exp(G_i)
//   P_i[c] = e_i * sum_d k_i[d] hi(S[d][c]);  Q_i[c] the same with q_i
//   Lb_ij = beta_i * (exp(G_i - G_j) * (k_i . k_j));  A_ij = exp(G_i - G_j) * (q_i . k_j)
//   T and AT from them, w and o from P and Q, as in kda_layer.h
//   u_m[c] = bf16(exp(G_15 - G_m) * sum_j bf16(T_mj) w_j[c])           the sum one tensor-core step from zero
//   anchor:  S'[d][c] = exp(G_15) S[d][c] + sum_m k_m[d] u_m[c]        one such step
//   out = bf16(((o * r) * w) * (gate * sig(gate))),  r as in kda_layer.h
// Products over d are tensor-core chains from zero, 8 steps of 16 channels, ascending. The decay of a head is one
// number: keys and queries enter all products as they are, so heads share them, and u alone is scaled for the anchor.
//
// State. The anchor keeps S in two planes of 16 bits, hi and lo, as in kda_layer.h; within a step of 16 channels these
// are in order. Rows read hi alone; a new anchor is made from both.
//   anchor:        [heads]: hi plane, lo plane, the convolution's window [3 rows][128] BF16 of v;
//                  [key heads]: the windows of q and k
//   journal page:  [key heads]: k [16 rows][128] BF16, inputs of the convolutions of q and k the same;
//                  [heads]: w, inputs of v, G [16] and T [16][16] FP32
// This op's PageField is read as 16 * row_bytes bytes, not row by row.
//
// Spans start anywhere; where a row lies at a multiple of 16 above span.anchor_position, the next anchor is made in the
// same pass, and stored if span.anchor_writes has it. Rows are stored where the page table has a page.
// Spans of one row take one launch (a block for each head); longer ones two: what needs no state, for all chunks at
// once, then chunk after chunk with S in registers.
#pragma once

#include <memory>
#include <string>

#include "base/step_view.h"
#include "device/device.h"
#include "ops/bound_op.h"
#include "ops/delta_rule/delta_rule.h"

namespace weir {

// Rows on the device, `stride` numbers apart: of BF16, addresses and strides are multiples of 8; of FP32, any.
struct GdnLayerArgs {
  int64_t heads = 0;
  int64_t key_heads = 0;  // a divisor of heads
  KeyHeadOrder order = KeyHeadOrder::kGrouped;
  float l2_eps = 0, norm_eps = 0;
  // On the host.
  const float* conv = nullptr;         // [(2 key_heads + heads) 128, 4], last tap = current row
  const float* a = nullptr;            // [heads], e^(A_log)
  const float* dt_bias = nullptr;      // [heads]
  const float* norm_weight = nullptr;  // [128]
  PageField journal;                   // row: gdn_layer_journal_row_bytes()
  AnchorField state;                   // gdn_layer_anchor_bytes()
  const uint16_t* qkv = nullptr;
  int64_t qkv_stride = 0;
  const float* a_logit = nullptr;
  int64_t a_logit_stride = 0;
  const float* beta_logit = nullptr;
  int64_t beta_logit_stride = 0;
  const uint16_t* gate = nullptr;
  int64_t gate_stride = 0;
  uint16_t* out = nullptr;  // none of the inputs
  int64_t out_stride = 0;
  int64_t workspace_bytes = int64_t{256} << 20;  // for what the first launch of long spans leaves to the second
};

inline constexpr int64_t kGdnHeadDim = 128;
inline constexpr int64_t kGdnTaps = 4;

int64_t gdn_layer_journal_row_bytes(int64_t heads, int64_t key_heads);
int64_t gdn_layer_anchor_bytes(int64_t heads, int64_t key_heads);

// Error on the CPU.
std::unique_ptr<BoundOp> bind_gdn_layer(Device& device, std::string name, const GdnLayerArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_gdn_layer_cuda(CudaDevice& device, std::string name,
                                                           const GdnLayerArgs& args);

}  // namespace weir
