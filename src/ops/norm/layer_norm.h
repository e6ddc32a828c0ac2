// LayerNorm over each row: mean and variance taken away, with weight and bias (arXiv:1607.06450).
//
//   x, y [rows, size] FP32, row strides given; x == y is allowed
// Numeric specification (docs/numerics.md, CPU rules 1 and 4; sums in sixteen lanes, padded with zeros, folded):
//   mean = (sum of x_k) / size;  d_k = x_k - mean;  ss = sum of d_k^2 (fused multiply-add)
//   r = 1 / sqrt(ss / size + eps);  y_k = (d_k * r) * w_k + b_k
// On CUDA: the same with the order of norm.h for both sums.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "ops/bound_op.h"

namespace weir {

struct LayerNormArgs {
  int64_t size = 0;
  float eps = 0;
  const float* weight = nullptr;  // [size]
  const float* bias = nullptr;    // [size]
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};

std::unique_ptr<BoundOp> bind_layer_norm(Device& device, std::string name, const LayerNormArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_layer_norm_cuda(CudaDevice& device, std::string name,
                                                            const LayerNormArgs& args);

// One row, single-threaded.
using LayerNormKernel = void (*)(const LayerNormArgs& args, int64_t row);
LayerNormKernel layer_norm_kernel(KernelSet set);

}  // namespace weir
