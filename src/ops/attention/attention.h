// Causal softmax attention over paged rows: grouped-query attention, and MLA in absorbed form (one KV head whose value
// is the first value_dim elements of its key).
//
//   q [rows, heads, key_dim] FP32;  K rows and V rows in pages (FP32, FP16, BF16);  out [rows, heads, value_dim] FP32
// Head h reads KV head h / (heads / kv_heads). A row at position p sees positions first(p)..p of its own sequence, as
// stored: its own K and V must have been written (bind_kv_write) before. first(p) = 0, or with a sliding window of w
// positions max(0, p - w + 1) (Mistral 7B, arXiv:2310.06825, and gpt-oss: j is visible iff p - w < j <= p).
//
// Numeric specification (docs/numerics.md, CPU rule 5), per row and head:
//   Keys are cut into pieces of L = max(256, pow2ceil(n) / 64) positions, n = p + 1, or min(p + 1, w) with a window; a
//   piece into tiles of 64 positions; both at absolute multiples. Only pieces and tiles that hold visible positions
//   count: at most 64 pieces, or 65 where a window begins inside one. So a window that the prefix does not fill changes
//   nothing. Each piece starts from m = -inf, l = 0, acc = 0. Tile by tile, ascending, over the visible positions j:
//     s_j = scale * dot(q, k_j)          dot: sixteen lanes over key_dim, fold (rule 1); stored k widened exactly
//     m' = max(m, max_j s_j);  c = exp(m - m') (0 in a piece's first tile)
//     p_j = exp(s_j - m');  l = l * c + sum_j p_j   (sum: sixteen lanes, lane j mod 16, other positions add +0; fold)
//     acc_d = acc_d * c, then acc_d = fma(p_j, v_jd, acc_d), j ascending, visible positions only
//   Pieces are merged ascending into the first one's (m, l, acc):
//     m' = max(m, m2); a = exp(m - m'); b = exp(m2 - m'); l = fma(l, a, l2 * b); acc_d = fma(acc_d, a, acc2_d * b)
//   With sinks (gpt-oss), one logit more in head h's denominator, sink_h, neither scaled nor with a value:
//     m' = max(m, sink_h); a = exp(m - m'); l = fma(l, a, exp(sink_h - m')); acc_d = acc_d * a
//   out_d = acc_d / l.
// Positions that a row does not see never reach its accumulators (select on load; 0 x NaN would poison). A page without
// a position that some row of its span sees is not touched: it may be kNoPage.
//
// Work is split over (rows of a span in blocks) x KV heads x pieces; rows of a block share the loads of K and V.
// On CUDA, FP32 activations (and head dimensions beyond 256 that are not 576 with values of 512 inside the keys): the
// operations above in the order above, so the same bits. Otherwise products of BF16 with FP32 sums, mma being one
// m16n8k16 step:
//   q and stored K and V are rounded to BF16 where they are wider.  S_j = mma over key_dim, ascending, from zero
//   t_j = S_j * c with c = scale * log2(e), one FP32 product.  Pieces as above; where value_dim is above 256, twice as
//   long, four times where more than 32 heads share a KV head, eight times where more than 96. Per tile, over the
//   visible positions:
//     M' = max(M, ceil(max_j t_j)), an integer;  P_j = 2^fma(S_j, c, -M') (0 where not visible), rounded to BF16
//     acc = acc * 2^(M - M') (exact), then mma(P, V, acc) over the tile's positions, ascending; l likewise, V being 1
//   Where value_dim is above 256, weights of a tile don't depend on the tiles before. Per tile:
//     N = ceil(max_j t_j);  P_j = 2^fma(S_j, c, -N) (0 where not visible), rounded to BF16
//     M' = max(M, N);  P_j = P_j * 2^(N - M'), rounded to BF16 (exact above 2^-126)
//     acc = acc * 2^(M - M'), then mma(P, V, acc);  l = fma(l, 2^(M - M'), s) with s = mma(P, 1) from zero
//   Merge: M' = max(M, M2); acc = fma(acc, 2^(M - M'), acc2 * 2^(M2 - M')), l likewise; a piece that shows a row
//   nothing is left out. Pieces are merged ascending; where value_dim is above 256, 64 at a time as a binary tree over
//   the index that they have from position 0 on (2i with 2i + 1, and so on), and the trees ascending.
//   Sink t = sink * log2(e): M' = max(M, ceil(t)); l = fma(l, 2^(M - M'), 2^(t - M')); acc * 2^(M - M').
//   out = acc * (1 / l).
// Values that a row does not see are multiplied by zero there: they must be finite, or zero where nothing was written.
// Positions before a span's first one must be of earlier steps: they may be read while the kernel before still runs.
//
// Cost: each visible page row is read once per block of rows; 2 * heads * (key_dim + value_dim) * n FLOPs a row.
#pragma once

#include <memory>
#include <string>

#include "base/host_device.h"
#include "base/step_view.h"
#include "device/cpu.h"
#include "ops/bound_op.h"
#include "ops/linear/row_codes.h"

namespace weir {

enum class StateDtype : uint8_t { kF32, kF16, kBf16 };  // kBf16: on GPUs
inline int64_t state_dtype_bytes(StateDtype dtype) { return dtype == StateDtype::kF32 ? 4 : 2; }

// Rounds (to nearest even) and stores rows: element i of row r to element `to + i` of the row's place in the page.
struct KvWriteArgs {
  StateDtype dtype = StateDtype::kF32;
  PageField field;
  int64_t to = 0;    // first element within the page row
  int64_t size = 0;  // elements
  const float* x = nullptr;
  int64_t x_stride = 0;
};
std::unique_ptr<BoundOp> bind_kv_write(Device& device, std::string name, const KvWriteArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_kv_write_cuda(CudaDevice& device, std::string name,
                                                          const KvWriteArgs& args);

struct AttentionArgs {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float scale = 1;
  StateDtype dtype = StateDtype::kF32;
  PageField key;    // page row: kv_heads x key_dim elements
  PageField value;  // page row: kv_heads heads, value_head_stride elements apart (MLA: the same field as key)
  int64_t value_head_stride = 0;
  const float* q = nullptr;  // where q_type is kBf16, the address of such elements
  int64_t q_stride = 0;
  float* out = nullptr;  // likewise
  int64_t out_stride = 0;
  RowType q_type = RowType::kF32;               // kBf16: where attention_rounds(args)
  RowType out_type = RowType::kF32;             // likewise; rounded last
  int32_t max_rows = 0;                         // the most rows of a step; sizes the buffers for pieces
  int64_t window = 0;                           // positions that a row sees, its own included; 0: all
  const float* sinks = nullptr;                 // [heads] or none
  Activations activations = Activations::kF32;  // on CUDA
};
std::unique_ptr<BoundOp> bind_attention(Device& device, std::string name, const AttentionArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_attention_cuda(CudaDevice& device, std::string name,
                                                           const AttentionArgs& args);

// What an op must move and compute at least.
Cost attention_cost(const AttentionArgs& args, int32_t rows, int64_t position);
// On a GPU: are products those of BF16, as above?
bool attention_rounds(const AttentionArgs& args);
// Are values the beginnings of the keys? Then a page row is read once for both.
bool attention_shares_rows(const AttentionArgs& args);
// Error where the CPU can't read the state.
void check_cpu_state(const std::string& name, StateDtype dtype);

// Positions per piece for a row at position p, and the first one that it sees.
WEIR_HD inline int64_t attention_piece(int64_t p, int64_t window = 0) {
  const int64_t n = window > 0 && window <= p ? window : p + 1;
  int64_t ceil = 256 * 64;
  while (ceil < n) ceil *= 2;
  return ceil / 64;
}
WEIR_HD inline int64_t first_visible(int64_t p, int64_t window) {
  return window > 0 && p >= window ? p - window + 1 : 0;
}

}  // namespace weir
