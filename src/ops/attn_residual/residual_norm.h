// What surrounds the mixture of attn_residual.h in a layer, with it: a sublayer's output joins the running stream, the
// streams are mixed, the mixture is normed. One launch in place of three on a GPU, the same bits.
//
//   add.y = add.g + add.u, the last of residual.candidates (unless there is no sum);  residual.y = their mixture;  the
//   norm of it as norm.h says: norm.x is residual.y, of the same size; groups 1; no gate
#pragma once

#include <optional>

#include "ops/activation/activation.h"
#include "ops/attn_residual/attn_residual.h"
#include "ops/norm/norm.h"

namespace weir {

struct ResidualNormArgs {
  std::optional<ElementwiseArgs> add;  // kAdd
  AttnResidualArgs residual;
  NormArgs norm;
};

std::unique_ptr<BoundOp> bind_residual_norm(Device& device, std::string name, ResidualNormArgs args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_residual_norm_cuda(CudaDevice& device, std::string name,
                                                               ResidualNormArgs args);

}  // namespace weir
