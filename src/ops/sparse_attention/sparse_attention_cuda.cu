#include "ops/attention/attention_cuda.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace weir {

std::unique_ptr<BoundOp> bind_sparse_attention_cuda(CudaDevice& device, std::string name,
                                                    const SparseAttentionArgs& args) {
  return make_cuda_attention(device, std::move(name), args.attention,
                             {.list = args.selected, .count = args.count, .top_k = args.top_k});
}

}  // namespace weir
