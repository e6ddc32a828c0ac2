// The gated delta rule (Kimi Delta Attention: a decay per key channel; Gated DeltaNet: one per head) over an immutable
// anchor and a journal of at most 16 rows.
// Papers: Kimi Linear (arXiv:2510.26692), Gated Delta Networks (arXiv:2412.06464), chunk form as derived there.
//
//   q, k [rows, heads, key_dim], v [rows, heads, value_dim]   after convolution, SiLU and L2 norm; q carries its scale
//   g [rows, heads, key_dim]  log decay, <= 0;   beta [rows, heads] in (0, 1);   out [rows, heads, value_dim]  all FP32
// Scalar decay: g [rows, heads], and q, k [rows, key_heads, key_dim]; each key head serves heads / key_heads heads.
// By the recurrence:  S <- Diag(e^g) S;  u = beta (v - S^T k);  S <- S + k u^T;  out = S^T q;   S [key_dim, value_dim],
// 0 at the start of a sequence.
//
// Numeric specification: one for every row, whoever computes it (docs/numerics.md, CPU rule 7). Chunk = 16 positions at
// absolute multiples, S0 = the anchor at the chunk's start, i = this row, j = earlier rows of the chunk, all per head:
//   G_0 = g_0;  G_i = G_{i-1} + g_i                                     per channel, FP32 sums from the chunk start
//   bounded gate (G >= -80):   kn_j = k_j * e^(-G_j);  kd_i = k_i * e^(G_i);  qd_i = q_i * e^(G_i)
//                              L_ij = dot(kd_i, kn_j);  A_ij = dot(qd_i, kn_j)         dot: sixteen lanes over key_dim
//   unbounded gate:            kd_i, qd_i as above;  f = e^(G_i - G_j);  A_ii: f = e^0 = 1
//                              L_ij = dot(k_i * f, k_j);  A_ij = dot(q_i * f, k_j)
//   P_i[v] = sum_c kd_i[c] * S0[c][v];  O_i[v] = sum_c qd_i[c] * S0[c][v]     c ascending, fused multiply-adds from +0
//   scalar decay:              G, f as in the unbounded gate, one number per head;  kd_i = k_i;  qd_i = q_i
//                              L_ij = f * dot(k_i, k_j);  A_ij = f * dot(q_i, k_j)
//                              P_i and O_i: the sums above, each then times e^(G_i)
//   u: a = v_i - P_i; then j = 0..i-1 ascending: a = fma(-L_ij, u_j, a);  u_i = beta_i * a
//   out_i: a = O_i; then j = 0..i ascending: a = fma(A_ij, u_j, a)
// The anchor after a full chunk, per channel c, with e = e^(G_15):
//   w_j = kn_j * e (bounded) or k_j * e^(G_15 - G_j) (unbounded, scalar)
//   S1[c][v]: a = e * S0[c][v]; then j = 0..15 ascending: a = fma(w_j[c], u_j[v], a)
// e^x is math::exp. An absent S0 (kZeroAnchor) counts as +0: P and O are +0, and a starts from +0. (The products need
// not be formed: a finite factor times +0, added to +0, is +0.) With key_dim not a multiple of 16 the dots are padded
// with zeros (kn, f etc. count as 0 there).
//
// State: the journal page of a chunk holds, per row, [k' | G | u] per head with k' = kn (bounded) or k (unbounded), in
// this order: heads x key_dim of k', heads x key_dim of G, heads x value_dim of u, FP32. With the scalar decay:
// key_heads x key_dim of k, heads numbers G, heads x value_dim of u. The anchor holds heads x [key_dim, value_dim]
// FP32.
//
// A span may start anywhere. Its first row reads the earlier rows of its chunk from the journal page. Where a row lies
// at a multiple of 16 above span.anchor_position, the next anchor is made from the previous one and the full journal
// page in the same pass over S, and is stored if span.anchor_writes names a slot for it, else it lives in scratch. Rows
// are stored to the journal where the page table has a page. Old anchors are never written.
//
// On CUDA: the same bits, whatever the activations; what is not wanted of a new anchor lies in the slot of the next one
// that is. (In auto mode, layers of the published sizes are one op with state of its own: kda_layer, gdn_layer.)
//
// Work is split over (span, head); heads that share a key head each form its dots, at most a sixteenth of their work at
// dimensions of 128. Cost per row and head: S read once per span and chunk; 4 key_dim value_dim FLOPs and
// 4 (key_dim + value_dim) per earlier row of the chunk. A new anchor: S written once, 33 key_dim value_dim FLOPs.
#pragma once

#include <memory>
#include <string>

#include "base/step_view.h"
#include "device/cpu.h"
#include "ops/bound_op.h"

namespace weir {

enum class DecayKind { kBounded, kUnbounded, kScalar };

// The key head of head h: h / (heads / key_heads), or h % key_heads.
enum class KeyHeadOrder { kGrouped, kTiled };

struct DeltaRuleArgs {
  DecayKind decay = DecayKind::kBounded;
  int64_t heads = 0;
  int64_t key_heads = 0;  // kScalar: a divisor of heads; else heads, or 0 for that
  KeyHeadOrder order = KeyHeadOrder::kGrouped;
  int64_t key_dim = 0;    // at most 256
  int64_t value_dim = 0;  // at most 256
  PageField journal;      // row: delta_rule_journal_row_bytes()
  AnchorField state;      // delta_rule_anchor_bytes()
  const float* q = nullptr;
  int64_t q_stride = 0;
  const float* k = nullptr;
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
  const float* g = nullptr;
  int64_t g_stride = 0;
  const float* beta = nullptr;
  int64_t beta_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// By kind of decay, heads and dimensions.
int64_t delta_rule_journal_row_bytes(const DeltaRuleArgs& args);
int64_t delta_rule_anchor_bytes(const DeltaRuleArgs& args);

std::unique_ptr<BoundOp> bind_delta_rule(Device& device, std::string name, const DeltaRuleArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_delta_rule_cuda(CudaDevice& device, std::string name,
                                                            const DeltaRuleArgs& args);

}  // namespace weir
