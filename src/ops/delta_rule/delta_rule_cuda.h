// The kernels of the delta rule on a GPU, by activations and kind of decay. Internal to the folder.
#pragma once

#include <memory>
#include <string>

#include "ops/cuda_op.h"
#include "ops/delta_rule/delta_rule.h"

namespace weir {

// FP32, every kind and dimension.
std::unique_ptr<BoundOp> bind_f32_delta_rule_cuda(CudaDevice& device, std::string name, const DeltaRuleArgs& args);
// Tensor cores, 128 x 128: a decay per channel; one per head.
std::unique_ptr<BoundOp> bind_kda_cuda(CudaDevice& device, std::string name, const DeltaRuleArgs& args);
std::unique_ptr<BoundOp> bind_gdn_cuda(CudaDevice& device, std::string name, const DeltaRuleArgs& args);

}  // namespace weir
