// How one warpgroup of a block hands units on to the others, a unit ahead.
#pragma once

#include "device/cuda/ptx.h"
#include "ops/attention/attention_units_cuda.cuh"

namespace weir {

// In shared memory.
struct WorkRing {
  AttentionWork work[2];
  uint64_t full[2], empty[2];

  // By one thread, before the block's barrier.
  __device__ void init(int consumer_warps) {
    for (int i = 0; i < 2; ++i) {
      cuda::ptx::mbarrier_init(&full[i], 1);
      cuda::ptx::mbarrier_init(&empty[i], consumer_warps);
    }
  }
};

// By all threads of the warpgroup: calls work(unit, is it the first) for the block's units. The first call waits for
// the kernel before this one.
template <class Units, class Work>
__device__ __forceinline__ void give_work(Units units, WorkRing& ring, bool leader, Work work) {
#pragma unroll 1
  for (int k = 0, index = blockIdx.x;; ++k) {
    AttentionWork unit = units.find(index, gridDim.x);
    unit.slot = units.split() ? unit.index : blockIdx.x;
    // racecheck work: a place is written when all warps that read the unit before in it have arrived at `empty`.
    cuda::ptx::mbarrier_wait(&ring.empty[k % 2], (k / 2 & 1) ^ 1);
    if (leader) {
      ring.work[k % 2] = unit;
      cuda::ptx::mbarrier_arrive(&ring.full[k % 2]);
    }
    if (unit.none()) break;
    work(unit, k == 0);
    index = unit.index + gridDim.x;
  }
}

// By each consuming warp: calls work(unit, slot, is it the first).
template <class Work>
__device__ __forceinline__ void take_work(const MmaAttention& a, WorkRing& ring, Work work) {
#pragma unroll 1
  for (int k = 0;; ++k) {
    cuda::ptx::mbarrier_wait(&ring.full[k % 2], k / 2 & 1);
    const AttentionWork& unit = ring.work[k % 2];
    if (unit.none()) break;
    if (k == 0) cuda::ptx::wait_for_previous();
    work(unit, a.partials + static_cast<int64_t>(unit.slot) * a.slot.floats(), k == 0);
    __syncwarp();
    if (threadIdx.x % 32 == 0) cuda::ptx::mbarrier_arrive(&ring.empty[k % 2]);
  }
}

}  // namespace weir
