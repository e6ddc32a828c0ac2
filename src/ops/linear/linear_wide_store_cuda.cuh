// Where the sums of the kernel of linear_wide_cuda.cuh go: to y, or to where those of other segments are.
#pragma once

#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_wide_stages_cuda.cuh"

namespace weir {

// store_sums for 64 outputs of a group of warps that lie in one part, and rows that can be written 16 bytes at a time:
// so they are, after passing through shared memory.
struct WideStore {
  static constexpr int kPitch = WideStaging::kPitch, kPass = WideStaging::kRows;

  const LinearPart& part;
  int first_out;
  bool possible;

  __device__ WideStore(const MultiplyArgs& args, const WideItem& item, int group)
      : part(part_of(args, item.first + 4 * group)),
        first_out((item.first + 4 * group - part.first_place) * static_cast<int>(kTileOuts)),
        possible(first_out + 64 <= part.out && reinterpret_cast<uintptr_t>(part.y) % 16 == 0 &&
                 part.y_stride % 4 == 0) {}

  template <int kRows>
  __device__ void store(int first_row, int rows, const StripSums<kRows>& sums, float* staging) const {
    const int thread = static_cast<int>(threadIdx.x) % 128, barrier = 1 + static_cast<int>(threadIdx.x) / 128;
    const int lane = lane_index(), own = thread / 32 * 16 + lane / 4;
    float bias[2] = {};
    if (part.bias != nullptr) {
      for (int half = 0; half < 2; ++half) bias[half] = part.bias[first_out + own + 8 * half];
    }
#pragma unroll
    for (int first = 0; first < kRows; first += kPass) {
      cuda::ptx::named_barrier_sync(barrier, 128);
#pragma unroll
      for (int i = 0; i < kPass / 2; ++i) {
        const float sum = sums[first / 2 + i];
        staging[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kPitch + own + i / 2 % 2 * 8] =
            part.bias != nullptr ? sum + bias[i / 2 % 2] : sum;
      }
      cuda::ptx::named_barrier_sync(barrier, 128);
#pragma unroll
      for (int i = 0; i < kPass / 8; ++i) {
        const int row = first_row + first + thread / 16 + 8 * i, o = thread % 16 * 4;
        if (row >= rows) break;
        const float4 v = *reinterpret_cast<const float4*>(staging + (thread / 16 + 8 * i) * kPitch + o);
        const int64_t at = row * part.y_stride + first_out + o;
        if (part.y_type == RowType::kBf16) {
          *reinterpret_cast<uint2*>(static_cast<uint16_t*>(part.y) + at) = {cuda::pack_bf16(v.x, v.y),
                                                                            cuda::pack_bf16(v.z, v.w)};
        } else {
          *reinterpret_cast<float4*>(static_cast<float*>(part.y) + at) = v;
        }
      }
    }
  }
};

// Where the sums of segments of a strip meet in memory, those of segment s at s * kRows / 8 * 32. A block with several
// from the first on leaves their sum in the first one's place.
template <int kRows>
struct WideMeeting {
  float4* sums;
  uint32_t* counter;

  __device__ WideMeeting(const MultiplyArgs& args, const WideItem& item, int place) {
    const LinearPart& part = part_of(args, place);
    const int64_t strip = part.first_strip + place - part.first_place;
    const int64_t at = static_cast<int64_t>(item.row_tile) * args.strips + strip;
    sums = reinterpret_cast<float4*>(args.partials) + at * args.segments * (kRows / 8) * 32 + lane_index();
    counter = args.counters + at;
  }
  __device__ void leave(int segment, const StripSums<kRows>& own) const {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      sums[(segment * (kRows / 8) + i) * 32] = {own[4 * i], own[4 * i + 1], own[4 * i + 2], own[4 * i + 3]};
    }
  }
  // Segments ascending, those of the first block together.
  __device__ void add_all(const MultiplyArgs& args, StripSums<kRows>& total) const {
    for (int s = 0; s < args.segments; s += s == 0 ? args.block_segments : 1) {
      float4 part[kRows / 8];
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) part[i] = __ldcg(sums + (s * (kRows / 8) + i) * 32);
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) {
        const float values[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
        for (int j = 0; j < 4; ++j) total[4 * i + j] = s == 0 ? values[j] : total[4 * i + j] + values[j];
      }
    }
  }
};

}  // namespace weir
