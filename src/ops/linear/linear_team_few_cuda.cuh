// The kernel of linear_multiply.h for packed weights of several segments, with up to 16 rows. A team of blocks, a
// cluster, has all segments of some strips of outputs, a block one segment, whose rows of x stay in its shared memory,
// and each of its warps a strip. Sums of segments meet in the shared memory of the team's blocks.
#pragma once

#include "ops/linear/linear_segment_cuda.cuh"
#include "ops/linear/linear_team_stages_cuda.cuh"

namespace weir {

// Where sums of segments meet. Eights of rows of the team's strips are dealt out to its blocks: unit u = strip *
// kColumns + column is added up by the block with rank u % segments, and is the (u / segments)-th there.
template <int kColumns>
struct TeamMeeting {
  float4* sums;
  uint64_t* full;
  int segments, rank, units;  // units: of all the strips

  __device__ TeamMeeting(const MultiplyArgs& args, const TeamItem& item, std::byte* shared)
      : sums(reinterpret_cast<float4*>(shared + 16)),
        full(reinterpret_cast<uint64_t*>(shared)),
        segments(args.segments),
        rank(item.segment),
        units(item.strips * kColumns) {
    if (threadIdx.x == 0) {
      cuda::ptx::mbarrier_init(full, 1);
      cuda::ptx::mbarrier_fence_init();
      cuda::ptx::mbarrier_arrive_expect(full, (units - rank + segments - 1) / segments * segments * 512);
    }
  }
  __device__ void leave(int strip, const Sums<kColumns>& of_segment) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float* v = of_segment.value[c];
      const int unit = strip * kColumns + c, place = unit / segments, to = unit - place * segments;
      const uint32_t at = cuda::ptx::shared_address(sums + (place * segments + rank) * 32 + lane_index());
      cuda::ptx::cluster_store16_async(cuda::ptx::shared_of_rank(at, to), {v[0], v[1], v[2], v[3]},
                                       cuda::ptx::shared_of_rank(cuda::ptx::shared_address(full), to));
    }
  }
  __device__ float4 total(int place) const {
    const float4* parts = sums + place * segments * 32 + lane_index();
    float4 sum = parts[0];
#pragma unroll 4
    for (int s = 1; s < segments; ++s) {
      const float4 part = parts[s * 32];
      sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    return sum;
  }
};

template <TileFormat kFormat, int kColumns>
__global__ void __launch_bounds__(32 * kTeamFewWarps, 2) linear_team_few(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  const TeamItem item(args);
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int ring_bytes = args.ring_stages * (kStageBytes<Operand> + 16);
  const SegmentRuns<TeamItem> runs{args, item, Operand::kBytes};
  const TeamMeeting<kColumns> meeting(args, item, shared + warps * ring_bytes);
  const SegmentX x(args, item.segment, shared + warps * ring_bytes + args.meeting_bytes);
  TileRing<Operand, SegmentRuns<TeamItem>> ring(shared + warp * ring_bytes, runs, args.ring_stages);
  __syncthreads();
  cuda::ptx::cluster_arrive_relaxed();
  cuda::ptx::wait_for_previous();
  x.load(part_of(args, item.first));
  cuda::ptx::let_next_start();  // its weights come after this kernel's x
  const int rows = step_rows(args);
  cuda::ptx::cluster_wait();  // barriers for sums are there
  if (warp < item.strips) {
    Sums<kColumns> sums;
    sums.clear();
    multiply_segment<Operand, false>(args, ring, x, true, sums);
    meeting.leave(warp, sums);
  }
  cuda::ptx::mbarrier_wait_cluster(meeting.full, 0);
  for (int place = warp; place * args.segments + item.segment < meeting.units; place += warps) {
    const int unit = place * args.segments + item.segment;
    const float4 sum = meeting.total(place);
    store_sums<8>(args, item.first + unit / kColumns, unit % kColumns * 8, rows, {sum.x, sum.y, sum.z, sum.w});
  }
}

template <TileFormat kFormat>
SegmentKernel team_few_instance(int32_t rows) {
  using Operand = typename OperandOf<kFormat>::Type;
  const SegmentKernel few = {linear_team_few<kFormat, 1>, kStageBytes<Operand> + 16, kStageTiles<Operand>};
  if (rows <= 8) return few;
  if constexpr (Operand::kMinima) {
    return {};
  } else {
    return {linear_team_few<kFormat, 2>, few.stage_bytes, few.stage_tiles};
  }
}

}  // namespace weir
