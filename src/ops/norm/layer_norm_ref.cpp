#include "base/math.h"
#include "ops/norm/layer_norm.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {

void layer_norm_row(const LayerNormArgs& args, int64_t row) {
  const float* x = args.x + row * args.x_stride;
  float* y = args.y + row * args.y_stride;
  const float size = static_cast<float>(args.size);
  Lanes sum;
  for (int64_t k = 0; k < (args.size + 15) / 16 * 16; ++k) sum.add(k, k < args.size ? x[k] : 0.f);
  const float mean = sum.fold() / size;
  for (int64_t k = 0; k < args.size; ++k) y[k] = x[k] - mean;
  const auto centred = [&](int64_t k) { return y[k]; };
  const float r = 1.f / math::sqrt(dot_lanes(args.size, centred, centred) / size + args.eps);
  for (int64_t k = 0; k < args.size; ++k) y[k] = (y[k] * r) * args.weight[k] + args.bias[k];
}

}  // namespace weir::reference
