#include "ops/attn_residual/residual_norm.h"

#include <utility>

#include "base/error.h"
#include "ops/op_sequence.h"

namespace weir {

std::unique_ptr<BoundOp> bind_residual_norm(Device& device, std::string name, ResidualNormArgs args) {
  const AttnResidualArgs& residual = args.residual;
  const NormArgs& norm = args.norm;
  if (norm.x != residual.y || norm.x_stride != residual.y_stride || norm.size != residual.size || norm.groups != 1 ||
      norm.rows != RowSet::kAll || norm_has_gate(norm.kind)) {
    fail(name, ": residual and norm: expected the norm of whole rows of the mixture, without a gate");
  }
  std::vector<std::unique_ptr<BoundOp>> ops;  // binding them checks the rest
  if (args.add) {
    const ElementwiseArgs& add = *args.add;
    if (add.kind != ElementwiseKind::kAdd || residual.candidates.empty() || add.y != residual.candidates.back() ||
        add.y_stride != residual.stride || add.y_type != RowType::kF32 || add.size != residual.size ||
        add.rows != RowSet::kAll) {
      fail(name, ": residual and norm: expected a sum that is the mixture's last candidate");
    }
    ops.push_back(bind_elementwise(device, name, add));
  }
  ops.push_back(bind_attn_residual(device, name, residual));
  ops.push_back(bind_norm(device, name, norm));
  if (device.is_cuda()) return bind_residual_norm_cuda(device.cuda(), std::move(name), std::move(args));
  return std::make_unique<OpSequence>(std::move(name), std::move(ops));
}

}  // namespace weir
