#include "base/math.h"
#include "ops/attn_residual/attn_residual.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {

void attn_residual_row(const AttnResidualArgs& args, int64_t row) {
  const int n = static_cast<int>(args.candidates.size());
  float p[kMaxResidualCandidates];
  float largest = 0;
  for (int i = 0; i < n; ++i) {
    const float* v = args.candidates[static_cast<size_t>(i)] + row * args.stride;
    const auto element = [&](int64_t k) { return v[k]; };
    const float ss = dot_lanes(args.size, element, element);
    const float r = 1.f / math::sqrt(ss / static_cast<float>(args.size) + args.eps);
    p[i] = dot_lanes(args.size, element, [&](int64_t k) { return args.weight[k]; }) * r;
    largest = i == 0 ? p[i] : math::max(largest, p[i]);
  }
  float z = 0;
  for (int i = 0; i < n; ++i) {
    p[i] = math::exp(p[i] - largest);
    z = z + p[i];
  }
  for (int i = 0; i < n; ++i) p[i] = p[i] / z;
  float* y = args.y + row * args.y_stride;
  for (int64_t d = 0; d < args.size; ++d) {
    float sum = 0;
    for (int i = 0; i < n; ++i)
      sum = math::fma(p[i], args.candidates[static_cast<size_t>(i)][row * args.stride + d], sum);
    y[d] = sum;
  }
}

}  // namespace weir::reference
