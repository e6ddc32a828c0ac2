// The indexer of sparse attention (DeepSeek-V3.2, GLM-5): scores every position that a row sees with a few small heads
// and one key per position, and keeps the best. Attention then visits those alone (ops/sparse_attention).
//
//   q [rows, heads, dim] and weights [rows, heads] FP32;  keys in pages (FP32, FP16, BF16), one row of dim elements
//   each selected [rows, top_k] int32: positions ascending, the first count[row] of them valid; count = min(p + 1,
//   top_k)
//
// Numeric specification, for a row at position p and every position j <= p:
//   s_h = dot(q_h, k_j)                     sixteen lanes over dim, fold (docs/numerics.md, rule 1)
//   score_j = sum over heads, ascending, from +0: fma(w_h * weight_scale, relu(s_h * scale), score)
//   relu(x) = x > 0 ? x : 0
// The top_k largest scores are kept; of equal ones the lowest positions. -0 equals +0; NaN ranks below every number.
// While p < top_k nothing is scored: all positions are kept. A function of the row's prefix alone.
//
// On CUDA: the same operations whatever the activations, so the same bits.
//
// Cost: each page row is read once per row; 2 * heads * dim * (p + 1) FLOPs a row.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "ops/attention/attention.h"
#include "ops/bound_op.h"

namespace weir {

struct IndexerArgs {
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t top_k = 0;
  float scale = 1;
  float weight_scale = 1;
  StateDtype dtype = StateDtype::kF32;
  PageField key;  // page row: dim elements
  const float* q = nullptr;
  int64_t q_stride = 0;
  const float* weights = nullptr;
  int64_t weights_stride = 0;
  int32_t* selected = nullptr;
  int32_t* count = nullptr;
};

std::unique_ptr<BoundOp> bind_indexer(Device& device, std::string name, const IndexerArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_indexer_cuda(CudaDevice& device, std::string name, const IndexerArgs& args);

}  // namespace weir
