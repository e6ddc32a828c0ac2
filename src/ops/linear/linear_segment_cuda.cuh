// The kernel of linear_multiply.h for packed weights of many segments, with up to 16 rows.
#pragma once

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_segment_x_cuda.cuh"
#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

// What a block computes: one segment of some strips, of which each warp takes one after the other. All blocks of a
// segment have as many, or one less.
//
// No block should be without: it would leave as soon as it may, the kernel after the next would then have one more in
// its place and one less elsewhere, and so all kernels that follow.
struct SegmentShare {
  int segment;
  int first, strips;  // places

  __device__ explicit SegmentShare(const MultiplyArgs& args) : segment(static_cast<int>(blockIdx.x) % args.segments) {
    const int index = static_cast<int>(blockIdx.x) / args.segments;
    const int blocks = (static_cast<int>(gridDim.x) - segment + args.segments - 1) / args.segments;
    first = index * args.places / blocks;
    strips = (index + 1) * args.places / blocks - first;
  }
};

// The tiles of a warp's strips.
template <class Share>
struct SegmentRuns {
  const MultiplyArgs& args;
  const Share& share;
  int tile_bytes;

  __device__ int strip(int i) const {
    return static_cast<int>(threadIdx.x) / 32 + i * (static_cast<int>(blockDim.x) / 32);
  }
  __device__ TileRun operator()(int i) const {
    if (strip(i) >= share.strips) return {};
    const int place = share.first + strip(i);
    const LinearPart& part = part_of(args, place);
    const int64_t segment = static_cast<int64_t>(place - part.first_place) * args.segments + share.segment;
    return {part.tiles + segment * args.segment_tiles * tile_bytes, args.segment_tiles};
  }
};

// Where the sums of the segments of a strip meet in memory. The last warp that comes adds them, segments ascending.
template <int kColumns>
struct SegmentMeeting {
  static constexpr int kFours = kColumns * 32;  // of a segment's sums

  float4* sums;
  uint32_t* counter;

  __device__ SegmentMeeting(const MultiplyArgs& args, int place) {
    const LinearPart& part = part_of(args, place);
    const int64_t strip = part.first_strip + place - part.first_place;
    sums = reinterpret_cast<float4*>(args.partials) + strip * args.segments * kFours + lane_index();
    counter = args.counters + strip;
  }
  __device__ void leave(int segment, const Sums<kColumns>& own) const {
    for (int c = 0; c < kColumns; ++c) {
      const float* v = own.value[c];
      sums[segment * kFours + c * 32] = {v[0], v[1], v[2], v[3]};
    }
  }
  __device__ Sums<kColumns> total(int segments) const {
    constexpr int kBatch = 8 / kColumns;  // of segments: every read is far
    Sums<kColumns> total;
    for (int first = 0; first < segments; first += kBatch) {
      float4 parts[kBatch][kColumns];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (first + s >= segments) break;
        for (int c = 0; c < kColumns; ++c) parts[s][c] = __ldcg(sums + (first + s) * kFours + c * 32);
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (first + s >= segments) break;
        for (int c = 0; c < kColumns; ++c) {
          const float4& part = parts[s][c];
          const float values[4] = {part.x, part.y, part.z, part.w};
          for (int i = 0; i < 4; ++i) {
            total.value[c][i] = first + s == 0 ? values[i] : total.value[c][i] + values[i];
          }
        }
      }
    }
    return total;
  }
};

// Multiplies kTiles tiles of a stage. A tile is read from shared memory while the one before is multiplied.
template <class Operand, int kTiles, int kColumns>
__device__ inline void multiply_stage(const std::byte* tiles, SegmentTile<kColumns>& x, Sums<kColumns>& sums) {
  Operand w(tiles);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const LoadedTile<kColumns> loaded(x);
    x.advance();
    if (t + 1 < kTiles) {
      const Operand next(tiles + (t + 1) * Operand::kBytes);
      multiply_tile(w, loaded, sums);
      w = next;
    } else {
      multiply_tile(w, loaded, sums);
    }
  }
}

// A segment of a strip; the first time pieces of x are waited for.
template <class Operand, class Ring, int kColumns>
__device__ inline void multiply_segment(const MultiplyArgs& args, Ring& ring, const SegmentX& x, bool first_time,
                                        Sums<kColumns>& sums) {
  constexpr int kStage = kStageTiles<Operand>;
  SegmentTile<kColumns> of_x = x.template tile<kColumns>();
  for (int k = 0; k < args.segment_tiles; k += kStage) {
    const std::byte* tiles = ring.acquire();
    if (first_time) x.wait(k / SegmentX::kPieceTiles);
    if (k + kStage <= args.segment_tiles) {
      multiply_stage<Operand, kStage>(tiles, of_x, sums);
    } else {
      for (int t = k; t < args.segment_tiles; ++t) {
        multiply_stage<Operand, 1>(tiles + (t - k) * Operand::kBytes, of_x, sums);
      }
    }
    ring.release();
  }
}

template <TileFormat kFormat, int kColumns>
__global__ void __launch_bounds__(32 * kSegmentWarps, 2) linear_segment(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  cuda::ptx::let_next_start();
  const SegmentShare share(args);
  if (share.strips == 0) return cuda::ptx::wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int ring_bytes = args.ring_stages * (kStageBytes<Operand> + 16);
  const SegmentRuns<SegmentShare> runs{args, share, Operand::kBytes};
  TileRing<Operand, SegmentRuns<SegmentShare>> ring(shared + warp * ring_bytes, runs, args.ring_stages);
  const SegmentX x(args, share.segment, shared + warps * ring_bytes);
  __syncthreads();
  cuda::ptx::wait_for_previous();
  x.load(part_of(args, share.first));
  const int rows = step_rows(args);
  for (int i = 0; runs.strip(i) < share.strips; ++i) {
    const int place = share.first + runs.strip(i);
    Sums<kColumns> sums;
    sums.clear();
    multiply_segment<Operand>(args, ring, x, i == 0, sums);
    const SegmentMeeting<kColumns> meeting(args, place);
    meeting.leave(share.segment, sums);
    if (!last_to_arrive(meeting.counter, args.segments)) continue;
    sums = meeting.total(args.segments);
    StripSums<8 * kColumns> flat;
    for (int j = 0; j < 4 * kColumns; ++j) flat[j] = sums.value[j / 4][j % 4];
    store_sums<8 * kColumns>(args, place, 0, rows, flat);
  }
}

template <TileFormat kFormat>
SegmentKernel segment_instance(int32_t rows) {
  using Operand = typename OperandOf<kFormat>::Type;
  return {rows <= 8 ? linear_segment<kFormat, 1> : linear_segment<kFormat, 2>, kStageBytes<Operand> + 16,
          kStageTiles<Operand>};
}

}  // namespace weir
