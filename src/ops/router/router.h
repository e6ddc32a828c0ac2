// Chooses the experts of every row. Sources: DeepSeek-V3 ("noaux_tc"; Kimi K3 and Kimi Linear too), Qwen3-MoE (softmax
// over all experts), gpt-oss (softmax over the chosen ones).
//
//   logits [rows, experts] FP32;  bias [experts] or null;  ids [rows, top_k], weights [rows, top_k]
// Scores s and choice values c = s + bias, or c = s without bias:
//   kSigmoid          s = sigmoid(logit)
//   kSoftmax          m = the largest logit, NaN counting below everything;  x = e^(logit - m);  s = x / z
//                     z: sum of all x in sixteen lanes (numerics.md, rule 1)
//   kSoftmaxOfChosen  s = logit
// The choice:
//   groups > 1: group score = sum of the two largest c of the group (of one when it has one); the topk_group best
//   groups stay, ties to the lowest group. Chosen: the top_k largest c among them, ties to the lowest id; a NaN counts
//   below everything
// The weights; sums are over the chosen experts, in ascending id, from +0:
//   kSigmoid, kSoftmax  w = s / (sum of s + 1e-20) * scaling_factor where renormalize, else s * scaling_factor
//   (DeepSeek
//                     divides a lone expert's score by itself; Kimi does not: its families leave renormalize out then)
//   kSoftmaxOfChosen  m = the largest s of the chosen, as above;  x = e^(s - m);  w = x / (sum of x) * scaling_factor;
//                     renormalize must be true: the weights have sum 1 as they are
// Finally w = w * expert_scale[id], where there are such factors (Gemma 4).
// ids are written in ascending order: the order in which a row's experts are added (docs/numerics.md, CPU rule 6).
//
// On CUDA: the same operations in the same order, and the same bits. A block takes a row; each of its warps chooses
// among its experts, then all among those.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "ops/bound_op.h"

namespace weir {

enum class RouterScore { kSigmoid, kSoftmax, kSoftmaxOfChosen };

struct RouterArgs {
  RouterScore score = RouterScore::kSigmoid;
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t groups = 1;
  int64_t topk_group = 1;
  bool renormalize = true;
  float scaling_factor = 1;
  const float* bias = nullptr;          // [experts]; null: none
  const float* expert_scale = nullptr;  // [experts]; null: none
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  int32_t* ids = nullptr;    // [rows, top_k]
  float* weights = nullptr;  // [rows, top_k]
};

// Throws Error when top_k exceeds the experts that can be chosen.
std::unique_ptr<BoundOp> bind_router(Device& device, std::string name, const RouterArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_router_cuda(CudaDevice& device, std::string name, const RouterArgs& args);

// One row of an op, single-threaded. `scratch`: router_scratch_bytes(experts).
using RouterKernel = void (*)(const RouterArgs& args, int64_t row, std::byte* scratch);
RouterKernel router_kernel(KernelSet set);
int64_t router_scratch_bytes(int64_t experts);

}  // namespace weir
