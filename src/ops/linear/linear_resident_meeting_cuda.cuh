// Where sums of segments of the kernel of linear_resident_cuda.cuh are added.
#pragma once

#include "device/cuda/posts.h"
#include "ops/linear/linear_sums_cuda.cuh"

namespace weir {

// Where sums of segments of a strip meet in memory (cuda/posts.h). Its eights of rows are dealt out to the segments:
// the warp that has the strip in that segment adds them up. The step's rows are asked for here: there are no registers
// to keep them in while a segment is multiplied.
template <int kRows>
struct ResidentMeeting {
  static constexpr int kEights = kRows / 8;

  const MultiplyArgs& args;
  int segment;

  __device__ uint4* posts(int place) const {
    const LinearPart& part = part_of(args, place);
    const int64_t strip = part.first_strip + place - part.first_place;
    return reinterpret_cast<uint4*>(args.posts) + strip * args.segments * kEights * 32 + lane_index();
  }
  __device__ void leave(int place, const StripSums<kRows>& own) const {
    const int rows = step_rows(args);
    uint4* const to = posts(place) + segment * kEights * 32;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (8 * e < rows) cuda::Post::store(to + e * 32, {own[4 * e], own[4 * e + 1], own[4 * e + 2], own[4 * e + 3]});
    }
  }
  __device__ void gather(int place) const {
    const int rows = step_rows(args), segments = args.segments;
    uint4* const from = posts(place);
    const int first = (segment + segments - place * kEights % segments) % segments;
#pragma unroll 1
    for (int e = first; 8 * e < rows; e += segments) {
      const float4 sum = cuda::take_posts(from + e * 32, segments, kEights * 32);
      store_sums<8>(args, place, 8 * e, rows, {sum.x, sum.y, sum.z, sum.w});
    }
  }
};

}  // namespace weir
