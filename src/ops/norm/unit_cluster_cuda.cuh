// A unit of unit_cuda.cuh in the blocks of a cluster, with the sums of Unit for 256 threads: block b has what warp b
// has there, 128 of each 1024 elements, a quad for each lane.
#pragma once

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"

namespace weir::cuda {

inline constexpr int kUnitBlocks = 8;
inline constexpr int64_t kLeastClusterSize = 513, kMostClusterSize = 8192;  // of units of 256 threads

// The sums of blocks, folded by halves.
__device__ __forceinline__ float fold_blocks(const float (&sums)[kUnitBlocks]) {
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// To the same place in the block with this rank.
__device__ __forceinline__ void send(float4* to, float4 v, uint64_t* full, int rank) {
  ptx::cluster_store16_async(ptx::shared_of_rank(ptx::shared_address(to), rank), v,
                             ptx::shared_of_rank(ptx::shared_address(full), rank));
}

}  // namespace weir::cuda
