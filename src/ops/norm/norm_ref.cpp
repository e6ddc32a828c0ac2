#include "base/math.h"
#include "ops/norm/norm.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {

void norm_units(const NormArgs& args, int64_t begin, int64_t end) {
  const float size = static_cast<float>(args.size);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / args.groups;
    const int64_t group = unit % args.groups;
    const float* x = args.x + row * args.x_stride + group * args.size;
    float* y = static_cast<float*>(args.y) + row * args.y_stride + group * args.size;
    const float* gate = norm_has_gate(args.kind) ? args.gate + row * args.gate_stride + group * args.size : nullptr;
    const auto element = [&](int64_t k) { return x[k]; };
    const float ss = dot_lanes(args.size, element, element);
    const float r = 1.f / math::sqrt((args.kind == NormKind::kL2 ? ss : ss / size) + args.eps);
    for (int64_t k = 0; k < args.size; ++k) {
      switch (args.kind) {
        case NormKind::kRms:
          y[k] = (x[k] * r) * args.weight[k];
          break;
        case NormKind::kRmsPlain:
          y[k] = x[k] * r;
          break;
        case NormKind::kL2:
          y[k] = (x[k] * r) * args.scale;
          break;
        case NormKind::kRmsGated:
          y[k] = ((x[k] * r) * args.weight[k]) * math::sigmoid(gate[k]);
          break;
        case NormKind::kRmsSiluGated:
          y[k] = ((x[k] * r) * args.weight[k]) * math::silu(gate[k]);
          break;
      }
    }
  }
}

}  // namespace weir::reference
