// The kernel for packed weights and up to 64 rows of linear_multiply.h: a block belongs to one segment of k, whose rows
// of x it keeps in shared memory, and multiplies units of 64 outputs with them, a group of four warps each; a warp's
// ring brings the tiles of its strip.
//
// The order of sums is that of linear_tile_cuda.cuh, instructions of other shapes giving the same bits.
#pragma once

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_resident_meeting_cuda.cuh"
#include "ops/linear/linear_resident_turns_cuda.cuh"

namespace weir {

template <TileFormat kFormat, int kRows>
__global__ void __launch_bounds__(512, 1)
    linear_resident(const __grid_constant__ MultiplyArgs args, const __grid_constant__ WideX x_maps) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, dynamic);
  std::byte* const shared = cuda::ptx::hidden_shared(dynamic);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const ResidentX<kRows> x(args, shared);
  if (threadIdx.x == 0) {
    cuda::ptx::prefetch_tensor_map(x_maps.of_part);
    x.init();
  }
  const ResidentShare share(args);
  std::byte* rings = shared + resident_x_bytes(args.segment_tiles, kRows);
  ResidentRing<Operand> ring(rings + warp * args.ring_stages * (ResidentRing<Operand>::kStageBytes + 16), args, share);
  ring.fill(0, ring.stages() / 2);
  cuda::ptx::let_next_start();
  __syncthreads();
  cuda::ptx::wait_for_previous();
  if (threadIdx.x == 0) x.bring(x_maps.of_part, share.segment * args.segment_tiles);
  __syncwarp();
  ring.fill(ring.stages() / 2, ring.stages());
  ResidentProduct<Operand, kRows> product(x);
  const ResidentMeeting<kRows> meeting{args, share.segment};
  const int group = warp / 4, groups = static_cast<int>(blockDim.x) / 128;
  const auto place_of = [&](int i) { return share.first + (group + i * groups) * 4 + warp % 4; };
  int left = 0;  // strips for others
#pragma unroll 1
  for (; group + left * groups < share.units; ++left) {
    StripSums<kRows> sums;
    product.multiply_segment(ring, args.segment_tiles, left == 0, sums);
    if (place_of(left) >= args.places) break;
    if (args.segments == 1) {
      store_sums<kRows>(args, place_of(left), 0, step_rows(args), sums);
    } else {
      meeting.leave(place_of(left), sums);
    }
  }
  if (args.segments == 1) return;
#pragma unroll 1
  for (int i = 0; i < left; ++i) meeting.gather(place_of(i));
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
