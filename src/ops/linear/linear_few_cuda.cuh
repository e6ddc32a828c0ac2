// The few-rows kernel of linear_multiply.h.
#pragma once

#include "ops/linear/linear_few_x_cuda.cuh"
#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

inline constexpr int kFewWarps = 16;  // of a block at most

// A warp's run.
struct FewRun {
  int strip, segment;
  bool there;
};

// The runs of a warp one after the other: its part of the block's, or all of its strips.
struct FewRuns {
  const MultiplyArgs& args;
  const FewShare& share;
  int tile_bytes;

  __device__ FewRun at(int i) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
    if (args.whole_strips) {
      const int strip = warp + i / args.segments * warps;
      return {strip, i % args.segments, strip < share.strips};
    }
    const int run = share.begin + warp + i * warps, segment = run / share.strips;
    return {run - segment * share.strips, segment, run < share.end};
  }
  __device__ TileRun operator()(int i) const {
    const FewRun run = at(i);
    if (!run.there) return {};
    const int place = share.first + run.strip;
    const LinearPart& part = part_of(args, place);
    const int64_t segment = static_cast<int64_t>(place - part.first_place) * args.segments + run.segment;
    return {part.tiles + segment * args.segment_tiles * tile_bytes, args.segment_tiles};
  }
};

// Where the sums of a cluster's runs meet: strip i's in the block i mod cluster, segment by segment, 32 fours to each.
// Behind them the barrier that hears of all that a block gets.
struct FewMeeting {
  float4* sums;
  uint64_t* full;
  int segments, cluster, own_strips;

  __device__ FewMeeting(const MultiplyArgs& args, const FewShare& share, std::byte* shared)
      : sums(reinterpret_cast<float4*>(shared)),
        full(reinterpret_cast<uint64_t*>(shared + args.meeting_bytes - 16)),
        segments(args.segments),
        cluster(args.cluster),
        own_strips((share.strips - share.rank + args.cluster - 1) / args.cluster) {
    if (cluster == 1) return;
    if (threadIdx.x == 0) {
      cuda::ptx::mbarrier_init(full, 1);
      cuda::ptx::mbarrier_fence_init();
      cuda::ptx::mbarrier_arrive_expect(full, own_strips * segments * 512);
    }
    cuda::ptx::cluster_arrive_relaxed();
  }
  __device__ void leave(const FewRun& run, const Sums<1>& of_run) const {
    const float* v = of_run.value[0];
    const float4 four = {v[0], v[1], v[2], v[3]};
    float4* at = sums + (run.strip / cluster * segments + run.segment) * 32 + lane_index();
    if (cluster == 1) {
      *at = four;
    } else {
      const auto owner = static_cast<uint32_t>(run.strip % cluster);
      cuda::ptx::cluster_store16_async(cuda::ptx::shared_of_rank(cuda::ptx::shared_address(at), owner), four,
                                       cuda::ptx::shared_of_rank(cuda::ptx::shared_address(full), owner));
    }
  }
  __device__ void wait() const {
    if (cluster == 1) {
      __syncthreads();
    } else {
      cuda::ptx::mbarrier_wait_cluster(full, 0);
    }
  }
  // All segments of this block's strip number `own`, in their order.
  __device__ Sums<1> total(int own) const {
    Sums<1> total;
    const float4* at = sums + own * segments * 32 + lane_index();
#pragma unroll 4
    for (int s = 0; s < segments; ++s) {
      const float4 part = at[s * 32];
      const float values[4] = {part.x, part.y, part.z, part.w};
      for (int i = 0; i < 4; ++i) total.value[0][i] = s == 0 ? values[i] : total.value[0][i] + values[i];
    }
    return total;
  }
};

template <TileFormat kFormat>
__global__ void __launch_bounds__(32 * kFewWarps, 2) linear_few_rows(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  cuda::ptx::let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const FewShare share(args);
  // A block without strips stays too: in its place the next kernel would have two blocks, and one less elsewhere.
  if (share.strips == 0) return cuda::ptx::wait_for_previous();
  const FewRuns runs{args, share, Operand::kBytes};
  const int ring_bytes = args.ring_stages * (kStageBytes<Operand> + 16);
  const FewMeeting meeting(args, share, shared + warps * ring_bytes);
  TileRing<Operand, FewRuns> ring(shared + warp * ring_bytes, runs, args.ring_stages);
  const FewX x(args, share, shared + warps * ring_bytes + args.meeting_bytes);
  if (args.cluster > 1) cuda::ptx::cluster_wait();  // before anything is sent
  cuda::ptx::wait_for_previous();
  x.load(part_of(args, share.first));
  const int rows = step_rows(args);
  __syncthreads();
  Sums<1> total;
  FewRun run = runs.at(0);
  for (int i = 1; run.there; ++i) {
    Sums<1> sums;
    sums.clear();
    multiply_run<Operand>(ring, args.segment_tiles, x.tile((run.segment - share.first_segment) * args.segment_tiles),
                          sums);
    if (!args.whole_strips) {
      meeting.leave(run, sums);
    } else {
      if (run.segment == 0) {
        total = sums;
      } else {
        total.add(sums);
      }
      if (run.segment == args.segments - 1) store_sums<8>(args, share.first + run.strip, 0, rows, total.value[0]);
    }
    run = runs.at(i);
  }
  if (args.whole_strips) return;
  meeting.wait();
  for (int own = warp; own < meeting.own_strips; own += warps) {
    store_sums<8>(args, share.first + own * args.cluster + share.rank, 0, rows, meeting.total(own).value[0]);
  }
}

template <TileFormat kFormat>
FewRowsKernel few_rows_instance() {
  using Operand = typename OperandOf<kFormat>::Type;
  return {linear_few_rows<kFormat>, kStageBytes<Operand>, kStageTiles<Operand>};
}

}  // namespace weir
