// The kernel for packed weights and up to 64 rows of linear_multiply.h. A team of blocks, a cluster, has all segments
// of some strips of outputs, a block one segment or a few, and each of its warps a strip. The sums of segments travel
// to the shared memory of the team's blocks, each of which adds up, in the order of segments, those of some rows and
// outputs.
//
// The order of sums is that of linear_tile_cuda.cuh, instructions of other shapes giving the same bits.
#pragma once

#include "ops/linear/linear_team_stages_cuda.cuh"
#include "ops/linear/linear_team_turns_cuda.cuh"

namespace weir {

inline constexpr int kTeamStrips = 16;  // of a block at most; two blocks of half as many fit a multiprocessor

// Eights of rows of all the block's strips are dealt out to the team: unit u = strip * kEights + eight is added up by
// the block with rank u % splits, and is the (u / splits)-th there.
template <class Stages>
__device__ inline int units_of(const MultiplyArgs& args, const TeamItem& item, const Stages& stages) {
  const int left = stages.strips * Stages::Shape::kEights - item.segment;
  return left > 0 ? (left + args.splits - 1) / args.splits : 0;
}

// Sends a segment's sums of a strip to where they are added up.
template <int kRows, class Stages>
__device__ inline void send_sums(const MultiplyArgs& args, const Stages& stages, int segment, int strip,
                                 const StripSums<kRows>& sums) {
  const uint32_t to = cuda::ptx::shared_address(stages.sums()) + segment * 512 + lane_index() * 16;
  const uint32_t barrier = cuda::ptx::shared_address(stages.sums_full());
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
    const int unit = strip * (kRows / 8) + i, place = unit / args.splits, rank = unit - place * args.splits;
    const float4 four = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
    cuda::ptx::cluster_store16_async(cuda::ptx::shared_of_rank(to + place * args.segments * 512, rank), four,
                                     cuda::ptx::shared_of_rank(barrier, rank));
  }
}

// Adds up segments, in their order, of what has arrived.
template <class Stages>
__device__ inline void add_sums(const MultiplyArgs& args, const TeamItem& item, const Stages& stages, int rows) {
  constexpr int kEights = Stages::Shape::kEights;
  const int units = units_of(args, item, stages);
  cuda::ptx::mbarrier_wait(stages.sums_full(), 0);
  for (int place = static_cast<int>(threadIdx.x) / 32; place < units; place += stages.strips) {
    const int unit = place * args.splits + item.segment, strip = unit / kEights, first_row = unit % kEights * 8;
    if (strip >= item.strips || first_row >= rows) continue;
    const float4* parts = reinterpret_cast<const float4*>(stages.sums()) + place * args.segments * 32 + lane_index();
    float4 sum = parts[0];
#pragma unroll 4
    for (int s = 1; s < args.segments; ++s) {
      const float4 part = parts[s * 32];
      sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    store_sums<8>(args, item.first + strip, first_row, rows, {sum.x, sum.y, sum.z, sum.w});
  }
}

template <TileFormat kFormat, int kRows>
__global__ void __launch_bounds__(32 * kTeamStrips, 1)
    linear_team(const __grid_constant__ MultiplyArgs args, const __grid_constant__ WideX x_maps) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  const TeamStages<Operand, kRows> stages(shared, args);
  const TeamItem item(args);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  stages.init(warp, units_of(args, item, stages) * args.segments * 512);
  TeamReader<Operand, kRows> reader(args, x_maps, item, stages);
  __syncthreads();
  cuda::ptx::cluster_arrive_relaxed();
  cuda::ptx::let_next_start();
  const int rows = step_rows(args);
  cuda::ptx::wait_for_previous();
  reader.bring_first_x();
  cuda::ptx::cluster_wait();  // barriers for sums are there
  StripSums<kRows> sums;
  if constexpr (TeamShape<Operand, kRows>::kWarps) {
    multiply_by_warp<Operand, kRows>(reader, sums);
  } else if constexpr (Operand::kGroupSteps == 0) {
    multiply_plain<Operand, kRows>(reader, sums);
  } else if constexpr (Operand::kGroupSteps < 4 || kRows > 32) {
    multiply_groups<Operand, kRows>(reader, sums);
  } else {
    multiply_scaled<Operand, kRows>(reader, sums);
  }
  cuda::ptx::pin<kRows / 2>(sums);
  send_sums<kRows>(args, stages, item.segment, warp, sums);
  add_sums(args, item, stages, rows);
}

template <TileFormat kFormat, int kRows>
TeamKernel team_instance() {
  using Shape = TeamShape<typename OperandOf<kFormat>::Type, kRows>;
  return {linear_team<kFormat, kRows>, kRows, Shape::kBarrierBytes, Shape::kXBytes, Shape::kXTiles, Shape::kStageBytes,
          Shape::kStageTiles};
}

template <TileFormat kFormat>
TeamKernel team_instance(int32_t rows) {
  if (rows <= 8) return team_instance<kFormat, 8>();
  if (rows <= 16) return team_instance<kFormat, 16>();
  if constexpr (OperandOf<kFormat>::Type::kMinima) {
    return {};
  } else {
    return rows <= 32 ? team_instance<kFormat, 32>() : team_instance<kFormat, 64>();
  }
}

}  // namespace weir
