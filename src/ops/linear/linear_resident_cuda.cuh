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
__global__ void __launch_bounds__(512, 1)
    linear_resident(const __grid_constant__ MultiplyArgs args, const __grid_constant__ WideX x_maps) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, dynamic);
  std::byte* const shared = cuda::ptx::hidden_shared(dynamic);
  WEIR_STAMP(0);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const ResidentX<kRows> x(args, shared);
  if (threadIdx.x == 0) {
    cuda::ptx::prefetch_tensor_map(x_maps.of_part);
    x.init();
  }
  const ResidentShare share(args);
  WEIR_STAMP(8);
  std::byte* rings = shared + resident_x_bytes(args.segment_tiles, kRows);
  ResidentRing<Operand> ring(rings + warp * args.ring_stages * (ResidentRing<Operand>::kStageBytes + 16), args, share);
  ring.fill(0, ring.stages() / 2);
  WEIR_STAMP(9);
  cuda::ptx::let_next_start();
  __syncthreads();
  if (args.cluster > 1) cuda::ptx::cluster_arrive_relaxed();
  WEIR_STAMP(1);
  cuda::ptx::wait_for_previous();
  WEIR_STAMP(2);
  if (args.cluster > 1) cuda::ptx::cluster_wait();
  if (threadIdx.x == 0) x.bring(x_maps.of_part, share.segment * args.segment_tiles, args.cluster);
  __syncwarp();
  ring.fill(ring.stages() / 2, ring.stages());
  const int rows = step_rows(args);
  WEIR_STAMP(3);
  int unit = warp / 4;
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
    unit += static_cast<int>(blockDim.x) / 128;
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
