// The many-rows kernel of linear_multiply.h: two groups of four warps multiply 64 outputs each with the rows of the
// block, another warp brings tiles of weights and of x through a ring. BF16 tiles are operands where they lie in
// shared memory; others become BF16 in registers, a warp its strip.
//
// The order of sums is that of linear_tile_cuda.cuh, instructions of other shapes giving the same bits. A block takes
// all segments: their sums join those before in y, since registers hold one set. Or, where there are few blocks, each
// takes one, and the last warp to be done with a strip adds them up.
#pragma once

#include <type_traits>

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

inline constexpr int kManyStrips = 8;                        // of a block: a warp's each
inline constexpr int kManyThreads = 32 * (kManyStrips + 4);  // registers are dealt out by groups of four warps

template <class Operand, int kRows>
struct ManyStages {
  static constexpr int kWeightBytes = kManyStrips * Operand::kBytes;
  static constexpr int kBytes = kWeightBytes + kRows / 8 * kColumnTileBytes;
  static constexpr int kFit = 220 * 1024 / kBytes;
  static constexpr int kCount = kFit < 6 ? kFit : 6;
  static constexpr int kSharedBytes = kCount * kBytes + 16 * kCount;

  std::byte* memory;
  int slot = 0;
  uint32_t phase = 0;

  __device__ uint64_t* full() const { return reinterpret_cast<uint64_t*>(memory + kCount * kBytes) + slot; }
  __device__ uint64_t* empty() const { return full() + kCount; }
  __device__ std::byte* weights() const { return memory + slot * kBytes; }
  __device__ std::byte* x() const { return weights() + kWeightBytes; }
  __device__ void init() {
    for (slot = 0; slot < kCount; ++slot) {
      cuda::ptx::mbarrier_init(full(), 1);
      cuda::ptx::mbarrier_init(empty(), kManyStrips);
    }
    slot = 0;
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ void advance() {
    if (++slot == kCount) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// A tile's four steps. sums are of this thread's outputs and rows as wgmma lays them out: sums[4 j + i] of output
// lane / 4 + 8 (i / 2) of the warp's strip and row 8 j + lane % 4 * 2 + i % 2. fresh: sums begin here.
template <class Operand, int kRows>
__device__ inline void multiply_many(const std::byte* weights, const std::byte* x, bool fresh,
                                     float (&sums)[kRows / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint64_t b = cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(x), 128, 1024, cuda::ptx::Swizzle::kNone);
  if constexpr (std::is_same_v<Operand, Bf16Operand>) {
    const uint64_t a = cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(weights + warp / 4 * 4 * Operand::kBytes),
                                                   128, 1024, cuda::ptx::Swizzle::kNone);
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      cuda::ptx::wgmma_bf16_shared<kRows>(sums, a + step * 16, b + step * 16, !(fresh && step == 0));
    }
    cuda::ptx::wgmma_commit();
  } else {
    static_assert(Operand::kGroupSteps == 0);
    const Operand w(weights + warp * Operand::kBytes);
    uint32_t a[4][Operand::kParts][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      for (int part = 0; part < Operand::kParts; ++part) w.a(step, part, a[step][part]);
    }
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      for (int part = 0; part < Operand::kParts; ++part) {
        cuda::ptx::wgmma_bf16<kRows>(sums, a[step][part], b + step * 16, !(fresh && step == 0 && part == 0));
      }
    }
    cuda::ptx::wgmma_commit();
    cuda::ptx::wgmma_wait<0>();
  }
}

// The same for groups: their products from zero, then times their scales.
template <class Operand, int kRows>
__device__ inline void multiply_many_groups(const std::byte* weights, const std::byte* x, float (&sums)[kRows / 2]) {
  constexpr int kGroup = Operand::kGroupSteps;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint64_t b = cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(x), 128, 1024, cuda::ptx::Swizzle::kNone);
  const Operand w(weights + warp * Operand::kBytes);
  float product[kRows / 2];
#pragma unroll
  for (int group = 0; group < 4 / kGroup; ++group) {
    uint32_t a[kGroup][4];
#pragma unroll
    for (int s = 0; s < kGroup; ++s) w.a(group * kGroup + s, 0, a[s]);
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kGroup; ++s) {
      cuda::ptx::wgmma_bf16<kRows>(product, a[s], b + (group * kGroup + s) * 16, s > 0);
    }
    cuda::ptx::wgmma_commit();
    cuda::ptx::wgmma_wait<0>();
    cuda::ptx::pin<kRows / 2>(product);
    const float scale[2] = {w.scale(group, 0), w.scale(group, 1)};
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] = fmaf(scale[i / 2 % 2], product[i], sums[i]);
  }
}

}  // namespace weir
