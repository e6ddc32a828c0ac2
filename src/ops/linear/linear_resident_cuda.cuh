// The kernel for packed weights and up to 64 rows of linear_multiply.h: a block belongs to one segment of k, whose rows
// of x it keeps in shared memory, and multiplies units of 64 outputs with them, a group of four warps each; a warp's
// ring brings the tiles of its strip.
//
// The order of sums is that of linear_tile_cuda.cuh, instructions of other shapes giving the same bits.
#pragma once

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_resident_turns_cuda.cuh"
#include "ops/linear/linear_wide_store_cuda.cuh"

namespace weir {

template <TileFormat kFormat, int kRows>
__global__ void __launch_bounds__(640, 1)
    linear_resident(const __grid_constant__ MultiplyArgs args, const __grid_constant__ WideX x_maps) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, dynamic);
  std::byte* const shared = cuda::ptx::hidden_shared(dynamic);
  WEIR_STAMP(0);
  const int warp = static_cast<int>(threadIdx.x) / 32, group = warp / 4, groups = static_cast<int>(blockDim.x) / 128 - 1;
  const ResidentX<kRows> x(args, shared);
  const ResidentShare share(args);
  WEIR_STAMP(8);
  const int filled = group < groups ? group : warp % 4;  // whose ring this warp fills or reads
  ResidentRing<Operand> ring(shared + resident_x_bytes(args.segment_tiles, kRows), filled, args.ring_stages);
  if (group == groups) {
    if (filled < groups && lane_index() == 0) ring.init();
  } else if (threadIdx.x == 0) {
    cuda::ptx::prefetch_tensor_map(x_maps.of_part);
    x.init();
  }
  cuda::ptx::let_next_start();
  __syncthreads();
  WEIR_STAMP(1);
  if (group == groups) {
    cuda::ptx::lower_registers<32>();
    if (filled < groups) ring.fill(args, share, filled, groups);
    return;
  }
  cuda::ptx::raise_registers<112>();
  cuda::ptx::wait_for_previous();
  WEIR_STAMP(2);
  if (threadIdx.x == 0) x.bring(x_maps.of_part, share.segment * args.segment_tiles);
  __syncwarp();
  const int rows = step_rows(args);
  WEIR_STAMP(3);
  int unit = group;
  ResidentProduct<Operand, kRows> product(x);
  // Others hear of a unit's sums some tiles into the next one: until then these are on their way to memory.
  const auto meeting_at = [&](int place) { return WideMeeting<kRows>(args, {}, place); };
  const auto add = [&](int place, uint32_t before, StripSums<kRows>& sums) {
    const WideMeeting<kRows> meeting = meeting_at(place);
    if (!is_last(meeting.counter, before, args.segments)) return;
    meeting.add_all(args, sums);
    store_sums<kRows>(args, place, 0, rows, sums);
  };
  int left = -1;  // place
  uint32_t before = 0;
  for (bool first = true; unit < share.units; first = false) {
    StripSums<kRows> sums;
    product.multiply_segment(ring, args.segment_tiles, first, sums, [&] {
      if (left >= 0) before = arrive_at(meeting_at(left).counter);
    });
    WEIR_FIRST_STAMP(first);
    const int place = share.place(unit, warp);
    unit += groups;
    if (place < args.places && args.segments > 1) {
      meeting_at(place).leave(share.segment, sums);
    } else if (place < args.places) {
      store_sums<kRows>(args, place, 0, rows, sums);
    }
    if (left >= 0) add(left, before, sums);
    left = place < args.places && args.segments > 1 ? place : -1;
  }
  WEIR_STAMP(10);
  if (left < 0) return;
  before = arrive_at(meeting_at(left).counter);
  StripSums<kRows> sums;
  WEIR_STAMP(11);
  add(left, before, sums);
  WEIR_STAMP(5);
}

template <TileFormat kFormat>
ResidentKernel resident_instance(int32_t rows) {
  using Ring = ResidentRing<typename OperandOf<kFormat>::Type>;
  ResidentKernel kernel{.stage_bytes = Ring::kStageBytes, .stage_tiles = Ring::kStageTiles};
  kernel.rows = rows <= 32 ? 32 : 64;
  kernel.kernel = rows <= 32 ? linear_resident<kFormat, 32> : linear_resident<kFormat, 64>;
  return kernel;
}

}  // namespace weir
