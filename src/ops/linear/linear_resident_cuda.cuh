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
  // Others hear of a unit's sums when those of the next have been computed: their way to memory costs no time then.
  int left = -1;  // place
  for (bool first = true; unit < share.units; first = false) {
    StripSums<kRows> sums;
    product.multiply_segment(ring, args.segment_tiles, first, sums);
    WEIR_FIRST_STAMP(first);
    const int place = share.first + unit * 4 + warp % 4;
    unit += static_cast<int>(blockDim.x) / 128;
    if (place >= args.places) break;
    if (args.segments == 1) {
      store_sums<kRows>(args, place, 0, rows, sums);
      continue;
    }
    const WideMeeting<kRows> meeting(args, {}, left < 0 ? place : left);
    const uint32_t before = left < 0 ? 0 : arrive_at(meeting.counter);
    WideMeeting<kRows>(args, {}, place).leave(share.segment, sums);
    if (left >= 0 && is_last(meeting.counter, before, args.segments)) {
      meeting.add_all(args, sums);
      store_sums<kRows>(args, left, 0, rows, sums);
    }
    left = place;
  }
  if (left < 0) return;
  const WideMeeting<kRows> meeting(args, {}, left);
  if (last_to_arrive(meeting.counter, args.segments)) {
    StripSums<kRows> sums;
    meeting.add_all(args, sums);
    store_sums<kRows>(args, left, 0, rows, sums);
  }
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
