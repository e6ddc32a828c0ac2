#include "base/math.h"
#include "ops/gate/gate_kernel.h"

namespace weir::reference {

void kda_gate_heads(const KdaGateArgs& args, int64_t row, int64_t begin, int64_t end) {
  const float* f = args.f + row * args.f_stride;
  float* g = args.g + row * args.g_stride;
  for (int64_t h = begin; h < end; ++h) {
    for (int64_t i = h * args.key_dim; i < (h + 1) * args.key_dim; ++i) {
      const float z = f[i] + args.dt_bias[i];
      g[i] = args.bounded ? args.lower_bound * math::sigmoid(args.a[h] * z) : -(args.a[h] * math::softplus(z));
    }
    args.beta[row * args.beta_stride + h] = math::sigmoid(args.beta_logit[row * args.beta_logit_stride + h]);
  }
}

}  // namespace weir::reference
