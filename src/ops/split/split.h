// Takes a projection apart whose outputs come in groups of several parts: a query and a gate per head (Qwen3-Next's
// attention), or q, k, v and z per key head (its Gated DeltaNet). Published checkpoints store such projections as one
// matrix; it stays in place, and what it gives is sorted here.
//
//   x [rows, groups, sum of sizes] FP32;  part p: y_p [rows, groups, size_p]
//   y_p[row, g, i] = x[row, g, s_p + i]     s_p: the sizes of the parts before p
// Bits are copied: there is one implementation for all kernel sets, memcpy. Parts may lie in one buffer, side by side;
// none may overlap x or another. On a GPU at most 8 parts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/cpu.h"
#include "ops/bound_op.h"

namespace weir {

struct SplitPart {
  int64_t size = 0;  // elements per group
  float* y = nullptr;
  int64_t y_stride = 0;
};

struct SplitArgs {
  int64_t groups = 0;
  std::vector<SplitPart> parts;
  const float* x = nullptr;
  int64_t x_stride = 0;
};

// Throws Error, naming the op, for missing buffers and short strides.
std::unique_ptr<BoundOp> bind_split(Device& device, std::string name, SplitArgs args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_split_cuda(CudaDevice& device, std::string name, SplitArgs args);

}  // namespace weir
