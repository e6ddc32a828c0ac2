// The kernel for more than a few rows of linear_multiply.h: groups of four warps multiply 64 outputs each with the rows
// of the block, which pass through shared memory once for all of them. Other warps bring tiles: of weights as far ahead
// as there is room, even before the kernel in front has ended; of x, as rows of BF16. BF16 tiles are operands where
// they lie in shared memory; others become BF16 in registers, a warp its strip.
//
// The order of sums is that of linear_tile_cuda.cuh, instructions of other shapes giving the same bits. A block takes
// all segments of its outputs, or as few as let all multiprocessors work; then the last warp to be done with a strip
// adds them up.
#pragma once

#include <type_traits>

#include "ops/linear/linear_wide_store_cuda.cuh"
#include "ops/linear/linear_wide_turns_cuda.cuh"

namespace weir {

template <TileFormat kFormat, int kRows, int kGroups>
__global__ void __launch_bounds__(128 * (kGroups + 1),
                                  (WideShape<typename OperandOf<kFormat>::Type, kRows, kGroups>::kBlocks))
    linear_wide(const __grid_constant__ MultiplyArgs args, const __grid_constant__ WideX x_maps) {
  using Operand = typename OperandOf<kFormat>::Type;
  using Shape = WideShape<Operand, kRows, kGroups>;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  WideStages<Operand, kRows, kGroups> stages(shared);
  if (threadIdx.x == 0) stages.init();
  __syncthreads();
  cuda::ptx::let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, rows = step_rows(args);
  const WideItems<kRows, Shape::kStrips> items(args, rows);
  if (warp >= Shape::kStrips) {
    cuda::ptx::lower_registers<Shape::kFillerRegisters>();
    if (warp == Shape::kStrips) return bring_weights(args, items, stages, Operand::kBytes);
    cuda::ptx::wait_for_previous();
    if (warp == Shape::kStrips + 1) {
      if (lane_index() == 0) bring_x(args, x_maps, items, stages);
    } else if constexpr (Operand::kMinima) {
      sum_x<Operand, kRows, 2>(items, args.segment_tiles, stages, warp - Shape::kStrips - 2);
    }
    return;
  }
  cuda::ptx::raise_registers<Shape::kRegisters>();
  cuda::ptx::wait_for_previous();
  for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x)) {
    const WideItem item = items[i];
    const int place = item.first + warp;
    const bool split = item.segments < args.segments;
    StripSums<kRows> total;
    for (int segment = 0, tile = 0; segment < item.segments; ++segment) {
      StripSums<kRows> sums;
      if constexpr (std::is_same_v<Operand, Bf16Operand>) {
        multiply_segment_in_place<kRows>(stages, args.segment_tiles, sums);
      } else {
        multiply_segment<Operand, kRows>(stages, tile, args.segment_tiles, item.segments * args.segment_tiles, sums);
      }
      cuda::ptx::pin<kRows / 2>(sums);
      if (item.first_segment > 0 && warp < item.strips) {
        WideMeeting<kRows>(args, item, place).leave(item.first_segment + segment, sums);
      }
#pragma unroll
      for (int s = 0; s < kRows / 2; ++s) total[s] = segment == 0 ? sums[s] : total[s] + sums[s];
    }
    if constexpr (kRows > 64) {
      const WideStore whole(args, item, warp / 4);
      if (whole.possible && !split) {
        whole.store<kRows>(item.first_row, rows, total, stages.staging(warp / 4));
        continue;
      }
    }
    if (warp >= item.strips) continue;
    if (split) {
      const WideMeeting<kRows> meeting(args, item, place);
      if (item.first_segment == 0) meeting.leave(0, total);
      if (!last_to_arrive(meeting.counter, args.segments, item.segments)) continue;
      meeting.add_all(args, total);
    }
    store_sums<kRows>(args, place, item.first_row, rows, total);
  }
}

template <TileFormat kFormat, int kRows, int kGroups>
WideKernel wide_instance() {
  using Shape = WideShape<typename OperandOf<kFormat>::Type, kRows, kGroups>;
  return {linear_wide<kFormat, kRows, kGroups>,
          Shape::kSharedBytes,
          kRows,
          Shape::kStrips,
          Shape::kBlocks,
          Shape::kThreads};
}

template <TileFormat kFormat>
WideKernel wide_instance(int32_t rows) {
  if (rows <= 16) return wide_instance<kFormat, 16, 1>();
  if (rows <= 32) return wide_instance<kFormat, 32, 1>();
  if (rows <= 64) return wide_instance<kFormat, 64, 1>();
  return wide_instance<kFormat, 128, 2>();
}

}  // namespace weir
