#include "ops/delta_rule/delta_rule_cuda.h"

#include "ops/delta_rule/delta_rule_kernel.h"

namespace weir {

std::unique_ptr<BoundOp> bind_delta_rule_cuda(CudaDevice& device, std::string name, const DeltaRuleArgs& args) {
  if (!tensor_core_state(args)) return bind_f32_delta_rule_cuda(device, std::move(name), args);
  if (args.decay == DecayKind::kScalar) return bind_gdn_cuda(device, std::move(name), args);
  return bind_kda_cuda(device, std::move(name), args);
}

}  // namespace weir
