// The kernel of linear_multiply.h for packed weights of several segments, with up to 16 rows.
#pragma once

#include "device/cuda/posts.h"
#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_segment_x_cuda.cuh"
#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

// A segment of a strip.
struct SegmentRun {
  int segment, place;
};

// What a block computes: runs that follow each other, of all strips' first segments, then their second ones. Of one
// segment alone all blocks have as many, or one less; dealt out evenly (MultiplyArgs::block_segments) a block's runs
// may be of two. Each warp takes one after the other.
//
// No block is without (launch_segments): it would leave as soon as it may, the kernel after the next would then have
// one more in its place and one less elsewhere, and so all kernels that follow.
struct SegmentShare {
  const MultiplyArgs& args;
  int warps, warp;
  int begin, end;
  int first_segment, last_segment;

  // The compiler sees that the warp is the same for all lanes: what follows from it is in uniform registers.
  __device__ explicit SegmentShare(const MultiplyArgs& args_)
      : args(args_),
        warps(static_cast<int>(blockDim.x) / 32),
        warp(__shfl_sync(cuda::kAllLanes, static_cast<int>(threadIdx.x) / 32, 0)) {
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    if (args.block_segments == 1) {
      const int segment = block % args.segments, index = block / args.segments;
      const int of_segment = (blocks - segment + args.segments - 1) / args.segments;
      begin = segment * args.places + index * args.places / of_segment;
      end = segment * args.places + (index + 1) * args.places / of_segment;
    } else {
      const int64_t runs = int64_t{args.places} * args.segments;
      begin = static_cast<int>(block * runs / blocks);
      end = static_cast<int>((block + 1) * runs / blocks);
    }
    first_segment = begin / args.places;
    last_segment = (end - 1) / args.places;
  }
  // The warp's.
  __device__ bool has(int i) const { return begin + warp + i * warps < end; }
  __device__ SegmentRun run(int i) const {
    const int place = begin + warp + i * warps - first_segment * args.places;
    if (place < args.places) return {first_segment, place};
    return {last_segment, place - args.places};
  }
};

// The tiles of a warp's runs.
struct SegmentRuns {
  const SegmentShare& share;
  int tile_bytes;

  __device__ TileRun operator()(int i) const {
    if (!share.has(i)) return {};
    const MultiplyArgs& args = share.args;
    const SegmentRun run = share.run(i);
    const LinearPart& part = part_of(args, run.place);
    const int64_t segment = static_cast<int64_t>(run.place - part.first_place) * args.segments + run.segment;
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

// Multiplies the loaded tile; the next one, and with kAhead its x, is read from shared memory at the same time.
template <bool kAhead, class Operand, int kColumns>
__device__ inline void turn_to(const std::byte* tile, SegmentTile<kColumns>& x, Operand& w,
                               LoadedTile<kColumns>& loaded, Sums<kColumns>& sums) {
  const Operand next(tile);
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

// Multiplies kTiles tiles of a stage.
template <class Operand, bool kAhead, int kTiles, int kColumns>
__device__ inline void multiply_stage(const std::byte* tiles, SegmentTile<kColumns>& x, Sums<kColumns>& sums) {
  Operand w(tiles);
  LoadedTile<kColumns> loaded(x);
#pragma unroll
  for (int t = 1; t < kTiles; ++t) turn_to<kAhead>(tiles + t * Operand::kBytes, x, w, loaded, sums);
  x.advance();
  multiply_tile(w, loaded, sums);
}

// The same of `tiles` tiles, full stages, without a pause between them: the first tile of a stage, too, is read while
// the last one of the stage before is multiplied.
template <class Operand, bool kAhead, class Ring, int kColumns>
__device__ inline void multiply_stages(int tiles, Ring& ring, const SegmentX& x, SegmentTile<kColumns>& of_x,
                                       Sums<kColumns>& sums) {
  constexpr int kStage = kStageTiles<Operand>;
  const std::byte* stage = ring.acquire();
  x.wait(0);
  Operand w(stage);
  LoadedTile<kColumns> loaded(of_x);
  for (int k = kStage;; k += kStage) {
#pragma unroll
    for (int t = 1; t < kStage; ++t) turn_to<kAhead>(stage + t * Operand::kBytes, of_x, w, loaded, sums);
    if (k == tiles) break;
    ring.release();
    stage = ring.acquire();
    x.wait(k / SegmentX::kPieceTiles);
    turn_to<kAhead>(stage, of_x, w, loaded, sums);
  }
  multiply_tile(w, loaded, sums);
  ring.release();
  of_x.advance();
}

// A segment of a strip. Several columns gain from no pause between stages, one doesn't (measured).
template <class Operand, bool kAhead, class Ring, int kColumns>
__device__ inline void multiply_segment(int tiles, Ring& ring, const SegmentX& x, Sums<kColumns>& sums) {
  constexpr int kStage = kStageTiles<Operand>;
  SegmentTile<kColumns> of_x = x.template tile<kColumns>();
  int k = 0;
  if constexpr (kColumns > 1) {
    k = tiles - tiles % kStage;
    if (k > 0) multiply_stages<Operand, kAhead>(k, ring, x, of_x, sums);
  }
  for (; k < tiles; k += kStage) {
    const std::byte* stage = ring.acquire();
    x.wait(k / SegmentX::kPieceTiles);
    if (kColumns == 1 && k + kStage <= tiles) {
      multiply_stage<Operand, kAhead, kStage>(stage, of_x, sums);
    } else {
      for (int t = k; t < tiles; ++t) {
        multiply_stage<Operand, false, 1>(stage + (t - k) * Operand::kBytes, of_x, sums);
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
  const int ring_bytes = args.ring_stages * (kStageBytes<Operand> + 16);
  const SegmentRuns runs{share, Operand::kBytes};
  TileRing<Operand, SegmentRuns> ring(shared + share.warp * ring_bytes, runs, args.ring_stages);
  // racecheck grain: the tool takes a copy into the last stage for one over x's barriers, 16 bytes and more behind it;
  // with 1,024 bytes between it reports nothing
  const auto x_of = [&](int segment) {
    const int64_t before = (segment - share.first_segment) * SegmentX::bytes(args, args.x_rows);
    return SegmentX(args, segment, shared + share.warps * ring_bytes + before);
  };
  for (int s = share.first_segment; s <= share.last_segment; ++s) x_of(s).init();
  __syncthreads();
  cuda::ptx::wait_for_previous();
  for (int s = share.first_segment; s <= share.last_segment; ++s) x_of(s).load(part_of(args, 0));
  const int rows = step_rows(args);
  for (int i = 0; share.has(i); ++i) {
    const SegmentRun run = share.run(i);
    Sums<kColumns> sums;
    sums.clear();
    multiply_segment<Operand, kWarps <= kSomeSegmentWarps>(args.segment_tiles, ring, x_of(run.segment), sums);
    SegmentMeeting<kColumns>(args, run.segment, run.place).leave(sums);
  }
#pragma unroll 1
  for (int i = 0; share.has(i); ++i) {
    const SegmentRun run = share.run(i);
    const SegmentMeeting<kColumns> meeting(args, run.segment, run.place);
#pragma unroll 1
    for (int c = 0; c < kColumns; ++c) {
      if (!meeting.is_own(c)) continue;
      const float4 sum = meeting.total(c);
      store_sums<8>(args, run.place, 8 * c, rows, {sum.x, sum.y, sum.z, sum.w});
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
