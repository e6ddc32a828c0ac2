// How softmax maxima and sums of pieces are merged: attention.h, "Merge".
#pragma once

#include "device/cuda/ptx.h"

namespace weir::mma {

// 2^(from - to) for integers from <= to; 0 from minus infinity.
__device__ __forceinline__ float power(float from, float to) {
  const float d = from - to;
  return d >= -126.f ? __int_as_float((static_cast<int>(d) + 127) << 23) : 0.f;
}

struct MaxSum {
  float m = -__builtin_inff(), l = 0;
};

// Takes `next` in; acc = fma(acc, keep, next's * add).
struct Merge {
  float keep, add;
};
__device__ __forceinline__ Merge merge(MaxSum& all, const MaxSum& next) {
  const float m = fmaxf(all.m, next.m);
  const Merge merge{power(all.m, m), power(next.m, m)};
  all.l = fmaf(all.l, merge.keep, next.l * merge.add);
  all.m = m;
  return merge;
}
// Likewise a sink; returns the factor of acc.
__device__ __forceinline__ float merge_sink(MaxSum& all, float sink) {
  const float t = sink * 1.44269504088896341f;
  const float m = fmaxf(all.m, ceilf(t));
  const float keep = power(all.m, m);
  all.l = fmaf(all.l, keep, cuda::ptx::exp2_approx(t - m));
  all.m = m;
  return keep;
}

}  // namespace weir::mma
