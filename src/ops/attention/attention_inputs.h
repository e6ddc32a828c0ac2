// What lies between the projections of grouped-query attention and its core, as one op of a GPU: q taken apart from its
// gate, norms of heads, rotation, K and V stored in their pages. For each row
//   q = rope(rms(q)), gate = its gate, K = rope(rms(k)), V = rms(v), each step only where there is one
// with the arithmetic, and so the bits, of split.h, norm.h (RMS with and without weight, a group for each head), rope.h
// and KvWriteArgs.
#pragma once

#include "ops/attention/attention.h"
#include "ops/rope/rope.h"

namespace weir {

inline constexpr int64_t kLongestInputHead = 512;  // elements

struct AttentionInputsArgs {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // 0: K and V of another layer are used
  int64_t head_dim = 0;  // at most kLongestInputHead
  float eps = 0;
  const float* q_norm = nullptr;  // [head_dim] or none
  const float* k_norm = nullptr;
  bool v_norm = false;
  int64_t pairs = 0;  // that are rotated; 0: none
  RopePairing pairing = RopePairing::kHalfSplit;
  const float* cos = nullptr;  // [rows, pairs]
  const float* sin = nullptr;
  const float* q_from = nullptr;  // heads, each followed by its gate where there are gates; may be q where not
  int64_t q_from_stride = 0;
  const float* k = nullptr;  // [rows, kv_heads, head_dim]
  int64_t k_stride = 0;
  const float* v = nullptr;  // likewise; may be k
  int64_t v_stride = 0;
  float* q = nullptr;  // [rows, heads, head_dim]
  int64_t q_stride = 0;
  float* gate = nullptr;  // likewise, or none
  int64_t gate_stride = 0;
  StateDtype dtype = StateDtype::kF32;
  PageField key, value;
};
std::unique_ptr<BoundOp> bind_attention_inputs(Device& device, std::string name, const AttentionInputsArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_attention_inputs_cuda(CudaDevice& device, std::string name,
                                                                  const AttentionInputsArgs& args);

}  // namespace weir
