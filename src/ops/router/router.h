// Chooses the experts of every row (DeepSeek-V3's "noaux_tc" router; Kimi K3 and Kimi Linear use it too).
//
//   logits [rows, experts] FP32;  bias [experts];  ids [rows, top_k], weights [rows, top_k]
//   s = sigmoid(logit);  c = s + bias
//   groups > 1: group score = sum of the two largest c of the group (of one when it has one); the topk_group best
//   groups stay, ties to the lowest group chosen: the top_k largest c among them, ties to the lowest id; a NaN counts
//   below everything w = s / (sum + 1e-20) * scaling_factor where renormalize and top_k > 1, else s * scaling_factor;
//   sum: of the chosen s, in ascending id, from +0
// ids are written in ascending order: the order in which a row's experts are added (docs/numerics.md, CPU rule 6).
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "ops/bound_op.h"

namespace weir {

struct RouterArgs {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t groups = 1;
  int64_t topk_group = 1;
  bool renormalize = true;
  float scaling_factor = 1;
  const float* bias = nullptr;  // [experts]
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  int32_t* ids = nullptr;    // [rows, top_k]
  float* weights = nullptr;  // [rows, top_k]
};

// Throws Error when top_k exceeds the experts that can be chosen.
std::unique_ptr<BoundOp> bind_router(CpuDevice& device, std::string name, const RouterArgs& args);

// One row of an op, single-threaded. `scratch`: router_scratch_bytes(experts).
using RouterKernel = void (*)(const RouterArgs& args, int64_t row, std::byte* scratch);
RouterKernel router_kernel(KernelSet set);
int64_t router_scratch_bytes(int64_t experts);

}  // namespace weir
