// Softmax attention of each row over positions that were selected for it (ops/indexer), for keys whose beginnings are
// the values (MLA in absorbed form).
//
// Numeric specification: that of attention.h over a sequence that consists of the selected rows, in ascending order of
// their positions, and nothing else: with n selected positions the row computes as a row at position n - 1, pieces and
// tiles counted by rank in the list. A selection of all positions gives attention's bits.
//
// On CUDA rows are read where they lie, by the kernels of attention.
//
// On the CPU the selected rows of a few queries at a time are copied together and attended to by the kernels of
// attention; each page row is read once per row of the batch.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "ops/attention/attention.h"
#include "ops/bound_op.h"

namespace weir {

class SparseAttentionWorkspace;

struct SparseAttentionArgs {
  AttentionArgs attention;            // kv_heads 1; value the same field as key
  const int32_t* selected = nullptr;  // [rows, top_k] positions ascending
  const int32_t* count = nullptr;     // [rows], at least 1
  int64_t top_k = 0;
  std::shared_ptr<SparseAttentionWorkspace> workspace;  // shared by ops that run one after the other
};

std::shared_ptr<SparseAttentionWorkspace> make_sparse_attention_workspace();
std::unique_ptr<BoundOp> bind_sparse_attention(Device& device, std::string name, const SparseAttentionArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_sparse_attention_cuda(CudaDevice& device, std::string name,
                                                                  const SparseAttentionArgs& args);

}  // namespace weir
