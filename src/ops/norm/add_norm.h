// A sum and the norm of it, which follow each other in every residual stream: one launch less on a GPU, the same bits.
//
//   add.y = add.g + add.u (kAdd) or (add.g + add.u) * add.beta (kAddScaled);  then the norm of add.y as norm.h says
//   add.y is norm.x, of the same size and rows; groups 1; any of norm.h's kinds without a gate
#pragma once

#include "ops/activation/activation.h"
#include "ops/norm/norm.h"

namespace weir {

struct SumNorm {
  ElementwiseArgs add;
  NormArgs norm;
};

std::unique_ptr<BoundOp> bind_add_norm(Device& device, std::string name, const ElementwiseArgs& add,
                                       const NormArgs& norm);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_add_norm_cuda(CudaDevice& device, std::string name,
                                                          const ElementwiseArgs& add, const NormArgs& norm);

}  // namespace weir
