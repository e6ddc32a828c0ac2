// Where sums of segments of the kernel of linear_resident_cuda.cuh are added.
#pragma once

#include "ops/linear/linear_wide_store_cuda.cuh"

namespace weir {

// Where sums of segments meet: each block that has a strip leaves those of its segment in memory, and adds all segments
// of its share of the rows. The blocks run at the same time, a strip's warps wait for each other.
template <int kRows>
struct ResidentMeeting {
  static constexpr int kEights = kRows / 8;
  static constexpr int kTogether = 2;  // eights of rows

  const MultiplyArgs& args;
  int segment;

  __device__ WideMeeting<kRows> at(int place) const { return WideMeeting<kRows>(args, {}, place); }
  // At `count` places, place_of(i): once for all, as what was left must be seen first, which takes a while.
  template <class Place>
  __device__ void arrive(int count, const Place& place_of) const {
    __syncwarp();
    for (int i = lane_index(); i < count; i += 32) cuda::ptx::add_ordered(at(place_of(i)).counter, 1);
    __syncwarp();
  }
  // The last of those who have seen all arrive leaves the counter zero.
  __device__ void await_all(uint32_t* counter) const {
    const auto all = static_cast<uint32_t>(args.segments);
    if (lane_index() == 0) {
      while (cuda::ptx::load_acquire(counter) < all) {}
      if (atomicAdd(counter, 1u) == 2 * all - 1) *counter = 0;
    }
    __syncwarp();
  }
  __device__ void gather(int place, int rows) const {
    const WideMeeting<kRows> meeting = at(place);
    await_all(meeting.counter);
    const LinearPart& part = part_of(args, place);
    const int lane = lane_index(), o = (place - part.first_place) * static_cast<int>(kTileOuts) + lane / 4;
    float bias[2] = {};
    for (int half = 0; half < 2; ++half) {
      if (part.bias != nullptr && o + 8 * half < part.out) bias[half] = part.bias[o + 8 * half];
    }
    const int end = kEights * (segment + 1) / args.segments;
#pragma unroll 1
    for (int i = kEights * segment / args.segments; i < end; i += kTogether) {
      float4 total[kTogether];
      total_of(meeting.sums + i * 32, end - i, total);
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        if (i + t >= end) break;
        const float sums[4] = {total[t].x, total[t].y, total[t].z, total[t].w};
        for (int j = 0; j < 4; ++j) {
          const int row = 8 * (i + t) + lane % 4 * 2 + j % 2, own = o + j / 2 * 8;
          if (row >= rows || own >= part.out) continue;
          store_output(part, row, own, part.bias != nullptr ? sums[j] + bias[j / 2] : sums[j]);
        }
      }
    }
  }
  // Segments ascending, of the first `count` of the eights of rows; many are on their way at once.
  __device__ void total_of(const float4* first, int count, float4 (&total)[kTogether]) const {
    constexpr int kBatch = 8;
#pragma unroll 1
    for (int s = 0; s < args.segments; s += kBatch) {
      float4 part[kBatch][kTogether];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
          if (s + b < args.segments && t < count) part[b][t] = __ldcg(first + ((s + b) * kEights + t) * 32);
        }
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        if (s == 0) total[t] = part[0][t];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (s + b == 0 || s + b >= args.segments) continue;
          const float4& more = part[b][t];
          total[t] = {total[t].x + more.x, total[t].y + more.y, total[t].z + more.z, total[t].w + more.w};
        }
      }
    }
  }
};

}  // namespace weir
