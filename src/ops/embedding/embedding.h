// Rows in and rows out of the stack.
//
//   embedding    y[r] = table[token of row r], widened exactly to FP32, times `scale` if that is not 1
//   gather       y[i] = x[logit_rows[i]]: the rows that want logits, moved to the front
//
// On CUDA: the same bits; NVFP4 tables are refused.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "formats/weight.h"
#include "ops/bound_op.h"

namespace weir {

struct EmbeddingArgs {
  WeightView table;  // [vocab, size], any format
  float scale = 1;
  float* y = nullptr;
  int64_t y_stride = 0;
};
// Tokens are in [0, vocab): the engine has checked them.
std::unique_ptr<BoundOp> bind_embedding(Device& device, std::string name, const EmbeddingArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_embedding_cuda(CudaDevice& device, std::string name,
                                                           const EmbeddingArgs& args);

struct GatherArgs {
  int64_t size = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};
std::unique_ptr<BoundOp> bind_gather(Device& device, std::string name, const GatherArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_gather_cuda(CudaDevice& device, std::string name, const GatherArgs& args);

}  // namespace weir
