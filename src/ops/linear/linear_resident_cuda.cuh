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

template <TileFormat kFormat, int kRows, int kHalves = 1>
__global__ void __launch_bounds__(512, 1) linear_resident(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, dynamic);
  std::byte* const shared = cuda::ptx::hidden_shared(dynamic);
  WEIR_STAMP(0);
  const ResidentShare share(args);
  ResidentX<kRows> x(args, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::byte* rings = shared + resident_x_bytes(args.segment_tiles, kRows);
  ResidentRing<Operand> ring(rings + warp * args.ring_stages * (ResidentRing<Operand>::kStageBytes + 16), args, share);
  if (threadIdx.x == 0) x.init();
  __syncthreads();
  cuda::ptx::let_next_start();
  WEIR_STAMP(1);
  cuda::ptx::wait_for_previous();
  WEIR_STAMP(2);
  x.request(part_of(args, share.first), share.segment);
  const int rows = step_rows(args);
  WEIR_STAMP(3);
  int unit = warp / 4;
  if (unit >= share.units) {
    for (int t = 0; t < args.segment_tiles; ++t) x.own_part(t);
    return;
  }
  ResidentProduct<Operand, kRows, kHalves> product(x);
  bool first = true;
  do {
    StripSums<kRows> sums;
    product.multiply_segment(ring, args.segment_tiles, first, sums);
    WEIR_FIRST_STAMP(first);
    first = false;
    const int place = share.first + unit * 4 + warp % 4;
    unit += static_cast<int>(blockDim.x) / 128;
    if (place >= args.places) continue;
    if (args.segments > 1) {
      const WideMeeting<kRows> meeting(args, {}, place);
      meeting.leave(share.segment, sums);
      if (!last_to_arrive(meeting.counter, args.segments)) continue;
      meeting.add_all(args, sums);
    }
    store_sums<kRows>(args, place, 0, rows, sums);
  } while (unit < share.units);
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
