// Where sums of segments of the kernel of linear_resident_cuda.cuh are added.
#pragma once

#include "device/cuda/posts.h"
#include "ops/linear/linear_sums_cuda.cuh"

namespace weir {

// Where sums of segments of a strip meet in memory (cuda/posts.h). Its eights of rows are dealt out to the segments:
// the warp that has the strip in that segment adds them up. Few warps of a multiprocessor do this at a time, so that
// each instruction counts.
template <int kRows>
struct ResidentMeeting {
  static constexpr int kEights = kRows / 8, kStep = kEights * 32;  // of posts, from a segment to the next

  const MultiplyArgs& args;
  int segment, rows;

  __device__ uint4* posts(const LinearPart& part, int place) const {
    const int64_t strip = part.first_strip + place - part.first_place;
    return reinterpret_cast<uint4*>(args.posts) + strip * args.segments * kStep + lane_index();
  }
  __device__ void leave(int place, const StripSums<kRows>& own) const {
    uint4* const to = posts(part_of(args, place), place) + segment * kStep;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (8 * e < rows) cuda::Post::store(to + e * 32, {own[4 * e], own[4 * e + 1], own[4 * e + 2], own[4 * e + 3]});
    }
  }
  __device__ void gather(int place) const {
    const LinearPart& part = part_of(args, place);
    uint4* const from = posts(part, place);
    const int o = (place - part.first_place) * static_cast<int>(kTileOuts) + lane_index() / 4;
#pragma unroll 1
    for (int e = (segment + place) % args.segments; 8 * e < rows; e += args.segments) {
      store(part, o, 8 * e + lane_index() % 4 * 2, take(from + e * 32));
    }
  }

 private:
  // All posts are asked for together; the first that has not come is waited for alone.
  __device__ float4 take(uint4* posts) const {
    constexpr int kBatch = 8;
    float4 sum{};
#pragma unroll 1
    for (int left = args.segments; left > 0; left -= kBatch, posts += kBatch * kStep) {
      cuda::Post batch[kBatch];
      for (const uint4* missing = posts; missing != nullptr;) {
        missing = nullptr;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (i < left) batch[i] = cuda::Post::load(posts + i * kStep);
        }
#pragma unroll
        for (int i = kBatch - 1; i >= 0; --i) {
          if (i < left && !batch[i].complete()) missing = posts + i * kStep;
        }
        while (missing != nullptr && !cuda::Post::load(missing).complete()) {}
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (i >= left) break;
        posts[i * kStep] = {0, 0, 0, 0};
        const float4 v = batch[i].value();
        sum = i == 0 && left == args.segments ? v : float4{sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
      }
    }
    return sum;
  }
  // Of outputs o and o + 8 and rows `row` and the next.
  __device__ void store(const LinearPart& part, int o, int row, const float4& sum) const {
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    const int64_t at = row * part.y_stride + o;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (o + 8 * half >= part.out) return;
      const float bias = part.bias != nullptr ? part.bias[o + 8 * half] : 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row + i >= rows) continue;
        const float value = part.bias != nullptr ? v[2 * half + i] + bias : v[2 * half + i];
        const int64_t to = at + i * part.y_stride + 8 * half;
        if (part.y_type == RowType::kBf16) {
          static_cast<uint16_t*>(part.y)[to] = static_cast<uint16_t>(cuda::pack_bf16(value, 0));
        } else {
          static_cast<float*>(part.y)[to] = value;
        }
      }
    }
  }
};

}  // namespace weir
