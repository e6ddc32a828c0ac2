// Sums that blocks of a kernel leave for each other in memory which is zero between kernels (CudaDevice::posts):
// whoever reads them sees by themselves that they are there, without a fence or a counter, and leaves zero. All blocks
// of such a kernel run at the same time (LaunchShape::together).
#pragma once

#include "device/cuda/ptx.h"

namespace weir::cuda {

// Four floats as the complements of their bits, which are zero for none: a NaN with all bits set becomes another.
struct Post {
  uint4 bits;

  __device__ static uint32_t word(float value) {
    const uint32_t bits = ~__float_as_uint(value);
    return bits > 1 ? bits : 1;
  }
  __device__ static void store(uint4* to, const float (&v)[4]) {
    ptx::store_relaxed(to, {word(v[0]), word(v[1]), word(v[2]), word(v[3])});
  }
  __device__ static Post load(const uint4* from) { return {ptx::load_relaxed(from)}; }
  __device__ bool complete() const { return bits.x != 0 && bits.y != 0 && bits.z != 0 && bits.w != 0; }
  __device__ float4 value() const {
    return {__uint_as_float(~bits.x), __uint_as_float(~bits.y), __uint_as_float(~bits.z), __uint_as_float(~bits.w)};
  }
};

// The sum of `count` posts, `step` apart, in their order; many are on their way at once. The first that has
// not come is waited for alone, since all together are much traffic; then the others are asked for again.
__device__ inline float4 take_posts(uint4* posts, int count, int step) {
  constexpr int kBatch = 7;
  float4 sum{};
#pragma unroll 1
  for (int first = 0; first < count; first += kBatch) {
    Post batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < count) batch[i] = Post::load(posts + (first + i) * step);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= count) break;
      uint4* const post = posts + (first + i) * step;
      if (!batch[i].complete()) {
        do {
          batch[i] = Post::load(post);
        } while (!batch[i].complete());
#pragma unroll
        for (int later = i + 1; later < kBatch; ++later) {
          if (first + later < count && !batch[later].complete()) {
            batch[later] = Post::load(posts + (first + later) * step);
          }
        }
      }
      *post = {0, 0, 0, 0};
      const float4 v = batch[i].value();
      sum = first + i == 0 ? v : float4{sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
  }
  return sum;
}

}  // namespace weir::cuda
