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

// Tiles of a stage: half as many where two blocks share a multiprocessor.
template <class Operand, int kBlocks>
using ResidentRingOf = ResidentRing<Operand, (Operand::kBytes < 800 ? 4 : 2) / kBlocks>;

// kBlocks: of a multiprocessor. With two the next kernel's block fits beside this one; it begins when x is on its way,
// since the copy engine brings what is asked for first.
template <TileFormat kFormat, int kRows, int kWarps, int kBlocks>
__global__ void __launch_bounds__(32 * kWarps, kBlocks)
    linear_resident(const __grid_constant__ MultiplyArgs args, const __grid_constant__ WideX x_maps) {
  using Operand = typename OperandOf<kFormat>::Type;
  using Ring = ResidentRingOf<Operand, kBlocks>;
  WEIR_DYNAMIC_SHARED(std::byte, dynamic);
  std::byte* const shared = cuda::ptx::hidden_shared(dynamic);
  // The shuffle tells the compiler that it is the same for all lanes.
  const int warp = __shfl_sync(cuda::kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  const ResidentX<Operand, kRows> x(args, shared);
  if (threadIdx.x < kRows) x.totals[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    cuda::ptx::prefetch_tensor_map(x_maps.of_part);
    x.init();
  }
  const ResidentShare share(args);
  std::byte* rings = shared + resident_x_bytes(args.segment_tiles, kRows, x.kGroups);
  Ring ring(rings + warp * args.ring_stages * (Ring::kStageBytes + 16), args, share, warp);
  const int before_x = ring.stages() / (kBlocks == 1 ? 2 : 1);
  ring.fill(0, before_x);
  __syncthreads();
  const int rows = step_rows(args);
  cuda::ptx::wait_for_previous();
  if (threadIdx.x == 0) x.bring(x_maps.of_part, share.segment * args.segment_tiles);
  cuda::ptx::let_next_start();
  __syncwarp();
  ring.fill(before_x, ring.stages());
  if constexpr (Operand::kMinima) x.sum();
  ResidentProduct<Operand, kRows> product(x);
  const ResidentMeeting<kRows> meeting{args, share.segment, rows};
  const int group = warp / 4, groups = static_cast<int>(blockDim.x) / 128;
  const auto place_of = [&](int i) { return share.first + (group + i * groups) * 4 + warp % 4; };
  int left = 0;  // strips for others
#pragma unroll 1
  for (; group + left * groups < share.units; ++left) {
    StripSums<kRows> sums;
    product.multiply_segment(ring, args.segment_tiles, left == 0, sums);
    if (place_of(left) >= args.places) break;
    if (args.segments == 1) {
      store_sums<kRows>(args, place_of(left), 0, rows, sums);
    } else {
      meeting.leave(place_of(left), sums);
    }
  }
  if (args.segments == 1) return;
#pragma unroll 1
  for (int i = 0; i < left; ++i) meeting.gather(place_of(i));
}

template <TileFormat kFormat, int kRows, int kWarps, int kBlocks>
ResidentKernel resident_instance() {
  using Operand = typename OperandOf<kFormat>::Type;
  using Ring = ResidentRingOf<Operand, kBlocks>;
  return {linear_resident<kFormat, kRows, kWarps, kBlocks>,
          kRows,
          kBlocks,
          Ring::kStageBytes,
          Ring::kStageTiles,
          ResidentX<Operand, kRows>::kGroups};
}

template <TileFormat kFormat>
ResidentKernel resident_instance(int32_t rows, int groups) {
  if (rows > 32) return resident_instance<kFormat, 64, 16, 1>();
  if (groups > 3) return resident_instance<kFormat, 32, 16, 1>();
  return groups > 2 ? resident_instance<kFormat, 32, 12, 2>() : resident_instance<kFormat, 32, 8, 2>();
}

}  // namespace weir
