// The kernel of linear_multiply.h for packed weights of several segments, with up to 16 rows.
#pragma once

#include "device/cuda/posts.h"
#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_segment_x_cuda.cuh"
#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

// What a block computes: one segment of some strips, of which each warp takes one after the other. All blocks of a
// segment have as many, or one less.
//
// No block is without (launch_segments): it would leave as soon as it may, the kernel after the next would then have
// one more in its place and one less elsewhere, and so all kernels that follow.
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
struct SegmentRuns {
  const MultiplyArgs& args;
  const SegmentShare& share;
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

// Where sums of segments of a strip meet in memory (cuda/posts.h). Its eights of rows are dealt out to the segments:
// the warp that has the strip in that segment adds them up.
template <int kColumns>
struct SegmentMeeting {
  uint4* posts;
  int segments, segment, first_unit;

  __device__ SegmentMeeting(const MultiplyArgs& args, int segment_, int place)
      : segments(args.segments), segment(segment_), first_unit(place * kColumns) {
    const LinearPart& part = part_of(args, place);
    const int64_t strip = part.first_strip + place - part.first_place;
    posts = reinterpret_cast<uint4*>(args.posts) + strip * segments * kColumns * 32 + lane_index();
  }
  __device__ void leave(const Sums<kColumns>& own) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) cuda::Post::store(posts + (segment * kColumns + c) * 32, own.value[c]);
  }
  __device__ bool is_own(int column) const { return (first_unit + column) % segments == segment; }
  __device__ float4 total(int column) const { return cuda::take_posts(posts + column * 32, segments, kColumns * 32); }
};

// Multiplies kTiles tiles of a stage. A tile, and with kAhead its x, is read from shared memory while the one before is
// multiplied.
template <class Operand, bool kAhead, int kTiles, int kColumns>
__device__ inline void multiply_stage(const std::byte* tiles, SegmentTile<kColumns>& x, Sums<kColumns>& sums) {
  Operand w(tiles);
  LoadedTile<kColumns> loaded(x);
#pragma unroll
  for (int t = 1; t < kTiles; ++t) {
    const Operand next(tiles + t * Operand::kBytes);
    x.advance();
    if constexpr (kAhead) {
      const LoadedTile<kColumns> next_loaded(x);
      multiply_tile(w, loaded, sums);
      loaded = next_loaded;
    } else {
      multiply_tile(w, loaded, sums);
      loaded = LoadedTile<kColumns>(x);
    }
    w = next;
  }
  x.advance();
  multiply_tile(w, loaded, sums);
}

// A segment of a strip; the first time pieces of x are waited for.
template <class Operand, bool kAhead, class Ring, int kColumns>
__device__ inline void multiply_segment(const MultiplyArgs& args, Ring& ring, const SegmentX& x, bool first_time,
                                        Sums<kColumns>& sums) {
  constexpr int kStage = kStageTiles<Operand>;
  SegmentTile<kColumns> of_x = x.template tile<kColumns>();
  for (int k = 0; k < args.segment_tiles; k += kStage) {
    const std::byte* tiles = ring.acquire();
    if (first_time) x.wait(k / SegmentX::kPieceTiles);
    if (k + kStage <= args.segment_tiles) {
      multiply_stage<Operand, kAhead, kStage>(tiles, of_x, sums);
    } else {
      for (int t = k; t < args.segment_tiles; ++t) {
        multiply_stage<Operand, false, 1>(tiles + (t - k) * Operand::kBytes, of_x, sums);
      }
    }
    ring.release();
  }
}

// kWarps: of a block, at most. Where they are few, registers for x are left.
template <TileFormat kFormat, int kColumns, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 2) linear_segment(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  cuda::ptx::let_next_start();
  const SegmentShare share(args);
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int ring_bytes = args.ring_stages * (kStageBytes<Operand> + 16);
  const SegmentRuns runs{args, share, Operand::kBytes};
  TileRing<Operand, SegmentRuns> ring(shared + warp * ring_bytes, runs, args.ring_stages);
  // racecheck grain: the tool takes a copy into the last stage for one over x's barriers, 16 bytes and more behind it;
  // with 1,024 bytes between it reports nothing
  const SegmentX x(args, share.segment, shared + warps * ring_bytes);
  __syncthreads();
  cuda::ptx::wait_for_previous();
  x.load(part_of(args, share.first));
  const int rows = step_rows(args);
  for (int i = 0; runs.strip(i) < share.strips; ++i) {
    Sums<kColumns> sums;
    sums.clear();
    multiply_segment<Operand, kWarps <= kSomeSegmentWarps>(args, ring, x, i == 0, sums);
    SegmentMeeting<kColumns>(args, share.segment, share.first + runs.strip(i)).leave(sums);
  }
#pragma unroll 1
  for (int i = 0; runs.strip(i) < share.strips; ++i) {
    const int place = share.first + runs.strip(i);
    const SegmentMeeting<kColumns> meeting(args, share.segment, place);
#pragma unroll 1
    for (int c = 0; c < kColumns; ++c) {
      if (!meeting.is_own(c)) continue;
      const float4 sum = meeting.total(c);
      store_sums<8>(args, place, 8 * c, rows, {sum.x, sum.y, sum.z, sum.w});
    }
  }
}

template <TileFormat kFormat, int kColumns>
SegmentKernel segment_instance(int warps) {
  using Operand = typename OperandOf<kFormat>::Type;
  SegmentKernel kernel{linear_segment<kFormat, kColumns, kSegmentWarps>, kStageBytes<Operand> + 16,
                       kStageTiles<Operand>};
  if (warps <= kSomeSegmentWarps) kernel.kernel = linear_segment<kFormat, kColumns, kSomeSegmentWarps>;
  if (warps <= kFewSegmentWarps) kernel.kernel = linear_segment<kFormat, kColumns, kFewSegmentWarps>;
  return kernel;
}

template <TileFormat kFormat>
SegmentKernel segment_instance(int32_t rows, int warps) {
  return rows <= 8 ? segment_instance<kFormat, 1>(warps) : segment_instance<kFormat, 2>(warps);
}

}  // namespace weir
