#include "base/math.h"
#include "ops/rope/rope.h"

namespace weir::reference {

void rope_row(const RopeArgs& args, int64_t row) {
  const bool half_split = args.pairing == RopePairing::kHalfSplit;
  const bool reordered = args.pairing == RopePairing::kInterleavedToHalf;
  const float* cos = args.cos + row * args.pairs;
  const float* sin = args.sin + row * args.pairs;
  for (int64_t h = 0; h < args.heads; ++h) {
    float* x = args.x + row * args.x_stride + h * args.head_stride;
    float before[2 * kRopeMostReordered];
    for (int64_t i = 0; reordered && i < 2 * args.pairs; ++i) before[i] = x[i];
    for (int64_t i = 0; i < args.pairs; ++i) {
      if (reordered) {
        const float a = before[2 * i];
        const float b = before[2 * i + 1];
        x[i] = math::fma(a, cos[i], -(b * sin[i]));
        x[i + args.pairs] = math::fma(b, cos[i], a * sin[i]);
        continue;
      }
      float& first = half_split ? x[i] : x[2 * i];
      float& second = half_split ? x[i + args.pairs] : x[2 * i + 1];
      const float a = first;
      const float b = second;
      first = math::fma(a, cos[i], -(b * sin[i]));
      second = math::fma(b, cos[i], a * sin[i]);
    }
  }
}

}  // namespace weir::reference
