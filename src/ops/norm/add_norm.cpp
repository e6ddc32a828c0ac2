#include "ops/norm/add_norm.h"

#include <utility>

#include "base/error.h"
#include "ops/op_sequence.h"

namespace weir {

std::unique_ptr<BoundOp> bind_add_norm(Device& device, std::string name, const ElementwiseArgs& add,
                                       const NormArgs& norm) {
  if (add.kind != ElementwiseKind::kAdd && add.kind != ElementwiseKind::kAddScaled) {
    fail(name, ": add and norm: expected a sum, found elementwise op ", static_cast<int>(add.kind));
  }
  if (add.y != norm.x || add.y_stride != norm.x_stride || add.size != norm.size || norm.groups != 1 ||
      add.y_type != RowType::kF32 || add.rows != norm.rows || norm_has_gate(norm.kind)) {
    fail(name, ": add and norm: expected the norm of whole rows of the sum, without a gate");
  }
  std::vector<std::unique_ptr<BoundOp>> ops;  // binding them checks the rest
  ops.push_back(bind_elementwise(device, name, add));
  ops.push_back(bind_norm(device, name, norm));
  if (device.is_cuda()) return bind_add_norm_cuda(device.cuda(), std::move(name), add, norm);
  return std::make_unique<OpSequence>(std::move(name), std::move(ops));
}

}  // namespace weir
