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

inline constexpr int kMostSplitRows = 128;                   // of blocks that may take one segment
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

// Rows, strips and segments of a block.
struct ManyBlock {
  int first_row, first_column, first_strip, strips, first_segment;

  template <int kRows>
  __device__ static ManyBlock here(const MultiplyArgs& args) {
    const int first_strip = static_cast<int>(blockIdx.y) * kManyStrips;
    const int left = args.strips - first_strip;
    return {static_cast<int>(blockIdx.x) * kRows, static_cast<int>(blockIdx.x) * (kRows / 8), first_strip,
            left < kManyStrips ? left : kManyStrips, static_cast<int>(blockIdx.z) * args.block_segments};
  }
};

// By a warp: lanes bring a strip's tile each, lane 0 x.
template <class Operand, int kRows>
__device__ inline void bring_tiles(const MultiplyArgs& args, const ManyBlock& block,
                                   ManyStages<Operand, kRows> stages) {
  const int k_tiles = args.segments * args.segment_tiles, lane = lane_index();
  const int first = block.first_segment * args.segment_tiles, end = first + args.block_segments * args.segment_tiles;
  const int left = args.columns - block.first_column;
  const int x_bytes = (left < kRows / 8 ? left : kRows / 8) * kColumnTileBytes;
  const std::byte* tile = nullptr;
  if (lane < block.strips) {
    const int strip = block.first_strip + lane;
    const LinearPart& part = part_of(args, strip);
    tile = part.tiles + (static_cast<int64_t>(strip - part.first_strip) * k_tiles + first) * Operand::kBytes;
  }
  for (int t = first; t < end; ++t) {
    cuda::ptx::mbarrier_wait(stages.empty(), stages.phase ^ 1);
    if (lane == 0) {
      cuda::ptx::mbarrier_arrive_expect(stages.full(), block.strips * Operand::kBytes + x_bytes);
      cuda::ptx::bulk_load(
          stages.x(), args.rounded + (static_cast<int64_t>(t) * args.columns + block.first_column) * kColumnTileBytes,
          x_bytes, stages.full());
    }
    __syncwarp();
    if (tile != nullptr) {
      cuda::ptx::bulk_load(stages.weights() + lane * Operand::kBytes, tile, Operand::kBytes, stages.full());
      tile += Operand::kBytes;
    }
    stages.advance();
  }
}

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

// y = sums, after the first added to what y has, or args.running where y is rounded; the last get the bias. Of the
// values before, kBatch are read at a time: one by one each would wait for the store before it.
template <int kRows>
__device__ inline void store_sums(const MultiplyArgs& args, const ManyBlock& block, bool first_sums, bool last,
                                  int rows, const float (&sums)[kRows / 2]) {
  constexpr int kBatch = 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_index();
  if (warp >= block.strips) return;
  const int strip = block.first_strip + warp;
  const LinearPart& part = part_of(args, strip);
  const auto row_of = [&](int i) { return block.first_row + i / 2 * 8 + lane % 4 * 2 + i % 2; };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int o = (strip - part.first_strip) * static_cast<int>(kTileOuts) + lane / 4 + 8 * half;
    if (o >= part.out) return;
    const bool biased = last && part.bias != nullptr;
    const float bias = biased ? part.bias[o] : 0;
    const bool rounded = part.y_type == RowType::kBf16;
    float* kept = rounded ? args.running + strip * kTileOuts + lane / 4 + 8 * half : static_cast<float*>(part.y) + o;
    const int64_t kept_stride = rounded ? args.strips * kTileOuts : part.y_stride;
#pragma unroll
    for (int first = 0; first < kRows / 4; first += kBatch) {
      float before[kBatch] = {};
      if (!first_sums) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (row_of(first + i) < rows) before[i] = kept[row_of(first + i) * kept_stride];
        }
      }
#pragma unroll
      for (int i = first; i < first + kBatch; ++i) {
        if (row_of(i) >= rows) continue;
        const float sum = sums[i / 2 * 4 + 2 * half + i % 2];
        const float total = first_sums ? sum : before[i - first] + sum;
        if (last) {
          store_output(part, row_of(i), o, biased ? total + bias : total);
        } else {
          kept[row_of(i) * kept_stride] = total;
        }
      }
    }
  }
}

// Leaves a segment's sums; the last warp to do so for a strip takes them all, segments ascending.
template <int kRows>
__device__ inline void combine_sums(const MultiplyArgs& args, const ManyBlock& block, int rows,
                                    float (&sums)[kRows / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_index();
  if (warp >= block.strips) return;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * args.strips + block.first_strip + warp;
  float4* partials = reinterpret_cast<float4*>(args.partials) + item * args.segments * (kRows / 8) * 32 + lane;
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
    partials[(block.first_segment * (kRows / 8) + i) * 32] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2],
                                                              sums[4 * i + 3]};
  }
  if (!last_to_arrive(args.counters + item, args.segments)) return;
  for (int s = 0; s < args.segments; ++s) {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      const float4 v = __ldcg(partials + (s * (kRows / 8) + i) * 32);
      const float values[4] = {v.x, v.y, v.z, v.w};
      for (int j = 0; j < 4; ++j) sums[4 * i + j] = s == 0 ? values[j] : sums[4 * i + j] + values[j];
    }
  }
  store_sums<kRows>(args, block, true, true, rows, sums);
}

template <TileFormat kFormat, int kRows>
__global__ void __launch_bounds__(kManyThreads, 1) linear_many_rows(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  using Stages = ManyStages<Operand, kRows>;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  Stages stages{shared};
  if (threadIdx.x == 0) stages.init();
  __syncthreads();
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const ManyBlock block = ManyBlock::here<kRows>(args);
  const int rows = step_rows(args);
  if (block.first_row >= rows) return;
  if (threadIdx.x / 32 >= kManyStrips) {
    cuda::ptx::lower_registers<40>();
    if (threadIdx.x / 32 == kManyStrips) bring_tiles<Operand, kRows>(args, block, stages);
    return;
  }
  cuda::ptx::raise_registers<232>();
  for (int segment = 0; segment < args.block_segments; ++segment) {
    float sums[kRows / 2];
    if constexpr (Operand::kGroupSteps > 0) {
      for (float& sum : sums) sum = 0;
    }
    uint64_t* used = nullptr;  // by products that may not be done yet
    for (int t = 0; t < args.segment_tiles; ++t) {
      cuda::ptx::mbarrier_wait(stages.full(), stages.phase);
      if constexpr (Operand::kGroupSteps > 0) {
        multiply_many_groups<Operand, kRows>(stages.weights(), stages.x(), sums);
      } else {
        multiply_many<Operand, kRows>(stages.weights(), stages.x(), t == 0, sums);
        cuda::ptx::wgmma_wait<1>();
      }
      if (used != nullptr && lane_index() == 0) cuda::ptx::mbarrier_arrive(used);
      used = stages.empty();
      stages.advance();
    }
    cuda::ptx::wgmma_wait<0>();
    cuda::ptx::pin<kRows / 2>(sums);
    if (lane_index() == 0) cuda::ptx::mbarrier_arrive(used);
    if constexpr (kRows <= kMostSplitRows) {
      if (args.block_segments < args.segments) {
        combine_sums<kRows>(args, block, rows, sums);
        return;
      }
    }
    store_sums<kRows>(args, block, segment == 0, segment == args.segments - 1, rows, sums);
  }
}

}  // namespace weir
