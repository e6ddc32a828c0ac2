// The gates of Kimi Delta Attention, and of Gated DeltaNet: its one decay per head is the unbounded gate with
// key_dim 1.
//
//   decay   z = f[r, h, d] + dt_bias[h, d];  t = a[h] * z with a = e^(A_log), folded at load by the caller
//           bounded:    g = lower_bound * sigmoid(t)            (Kimi K3: lower_bound -5; a smooth bound, not a clamp)
//           unbounded:  g = -(a[h] * softplus(z))               (Kimi Linear)
//   beta    b = sigmoid(logit)                                  [rows, heads]
// sigmoid and softplus are those of base/math.h; FP32 throughout.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "ops/bound_op.h"

namespace weir {

struct KdaGateArgs {
  bool bounded = true;
  float lower_bound = -5;  // in [-5, 0): sixteen steps must stay within e^80
  int64_t heads = 0;
  int64_t key_dim = 0;
  const float* a = nullptr;        // [heads]
  const float* dt_bias = nullptr;  // [heads, key_dim]
  const float* f = nullptr;        // [rows, heads, key_dim]
  int64_t f_stride = 0;
  const float* beta_logit = nullptr;  // [rows, heads]
  int64_t beta_logit_stride = 0;
  float* g = nullptr;  // [rows, heads, key_dim]; may be f
  int64_t g_stride = 0;
  float* beta = nullptr;  // [rows, heads]; may be beta_logit
  int64_t beta_stride = 0;
};

std::unique_ptr<BoundOp> bind_kda_gate(Device& device, std::string name, const KdaGateArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_kda_gate_cuda(CudaDevice& device, std::string name,
                                                          const KdaGateArgs& args);

// One row of an op, single-threaded.
using KdaGateKernel = void (*)(const KdaGateArgs& args, int64_t row);
KdaGateKernel kda_gate_kernel(KernelSet set);

Cost kda_gate_cost(const KdaGateArgs& args, int32_t rows);

}  // namespace weir
