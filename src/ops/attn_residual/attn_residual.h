// Block attention residuals (Kimi K3, "AttnRes"): the input of a sublayer is a softmax mixture of the sealed block
// streams and the running stream of the same row.
//
//   candidates v_0 .. v_{n-1} [rows, size], sealed blocks first, the running stream last;  w [size] = norm weight times
//   projection weight, folded in FP32 at load;  y [rows, size]
//   r_i = 1 / sqrt(ss_i / size + eps), ss_i = sum v^2 in sixteen lanes;   s_i = dot(v_i, w) * r_i  (sixteen lanes)
//   m = max_i s_i;  e_i = exp(s_i - m);  z = e_0 + e_1 + ... ascending;  p_i = e_i / z
//   y_d = fma(p_i, v_i[d], .) i ascending from +0, over the raw vectors
// No 1/sqrt(d), no mixing between rows. y may be none of the candidates.
// On CUDA: one pass, i ascending. s_i as above with both sums in the order that norm.h has for CUDA. m is the largest
// score so far; with a new largest one f = exp(m before - s_i) and e = 1, else f = 1 and e = exp(s_i - m); for i = 0
// both are 1
//   z = fma(z, f, e);  a_d = fma(e, v_i[d], a_d * f), from +0;   finally y_d = a_d * (1 / z)
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/cpu.h"
#include "ops/bound_op.h"
#include "ops/linear/linear.h"

namespace weir {

inline constexpr int kMaxResidualCandidates = 64;

struct AttnResidualArgs {
  std::vector<const float*> candidates;  // 1..kMaxResidualCandidates
  int64_t stride = 0;                    // of every candidate
  int64_t size = 0;
  float eps = 1e-5f;
  const float* weight = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
};

std::unique_ptr<BoundOp> bind_attn_residual(Device& device, std::string name, AttnResidualArgs args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_attn_residual_cuda(CudaDevice& device, std::string name,
                                                               AttnResidualArgs args);

// One row of an op, single-threaded.
using AttnResidualKernel = void (*)(const AttnResidualArgs& args, int64_t row);
AttnResidualKernel attn_residual_kernel(KernelSet set);

}  // namespace weir
