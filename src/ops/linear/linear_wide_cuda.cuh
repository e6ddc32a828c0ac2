// The kernel for more than a few rows of linear_multiply.h: groups of four warps multiply 64 outputs each with the rows
// of the block, which pass through shared memory once for all of them. Other warps bring tiles: of weights as far ahead
// as there is room, even before the kernel in front has ended; of x, as rows of BF16. BF16 tiles are operands where
// they lie in shared memory; others become BF16 in registers, a warp its strip.
//
// The order of sums is that of linear_tile_cuda.cuh, instructions of other shapes giving the same bits. A block takes
// all segments of its outputs, or one where there are too few blocks; then the last warp to be done with a strip adds
// them up.
#pragma once

#include <type_traits>

#include "device/cuda/tensor_map.h"
#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

#ifndef WEIR_GROUPS
#define WEIR_GROUPS 2
#endif
inline constexpr int kFewGroups = WEIR_GROUPS;

// Stages in shared memory; those that fill and those that empty them each go round with a copy of their own.
template <int kStages>
struct StageRing {
  static constexpr int kBytes = 16 * kStages;

  uint64_t* barriers;
  int slot = 0;
  uint32_t phase = 0;

  __device__ uint64_t* full() const { return barriers + slot; }
  __device__ uint64_t* empty() const { return barriers + kStages + slot; }
  __device__ void init(int readers) const {
    for (int i = 0; i < kStages; ++i) {
      cuda::ptx::mbarrier_init(barriers + i, 1);
      cuda::ptx::mbarrier_init(barriers + kStages + i, readers);
    }
  }
  __device__ void wait_full() const { cuda::ptx::mbarrier_wait(full(), phase); }
  __device__ void wait_empty() const { cuda::ptx::mbarrier_wait(empty(), phase ^ 1); }
  __device__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

template <class Operand, int kRows, int kGroups>
struct WideShape {
  static constexpr int kStrips = 4 * kGroups;                   // a warp's each
  static constexpr int kThreads = 128 * (kGroups + 1);          // registers are dealt out by groups of four warps
  static constexpr int kBlocks = kRows > 64 ? 1 : 4 / kGroups;  // of a multiprocessor
  // Of a thread that fills rings, and of one that multiplies.
  static constexpr int kAllRegisters = 65536 / (kThreads * kBlocks) / 8 * 8;
  static constexpr int kFillerRegisters = Operand::kMinima ? 56 : 32;
  static constexpr int kRegisters = (kAllRegisters * (kGroups + 1) - kFillerRegisters) / kGroups / 8 * 8;
  static constexpr int kStageTiles = Operand::kBytes < 1024 ? 2 : 1;
  static constexpr int kGroupsOfTile = Operand::kGroupSteps == 0 ? 0 : 4 / Operand::kGroupSteps;

  static constexpr int kXBytes = kRows * 128;
  static constexpr int kTotalBytes = Operand::kMinima ? kGroupsOfTile * kRows * 4 : 0;
  static constexpr int kWeightBytes = kStrips * kStageTiles * Operand::kBytes;
  static constexpr int kRoom = 220 * 1024 / kBlocks;
  static constexpr int kXStages = kRows > 64 ? 5 : 4;
  static constexpr int kFit = (kRoom - kXStages * (kXBytes + kTotalBytes)) / kWeightBytes;
  static constexpr int kWeightStages = kFit < 8 ? kFit : 8;
  static constexpr int kWeightsAt = kXStages * kXBytes;
  static constexpr int kTotalsAt = kWeightsAt + kWeightStages * kWeightBytes;
  static constexpr int kBarriersAt = kTotalsAt + kXStages * kTotalBytes;
  static constexpr int kSharedBytes = kBarriersAt + 16 * kWeightStages + 24 * kXStages;
};

template <class Operand, int kRows, int kGroups>
struct WideStages {
  using Shape = WideShape<Operand, kRows, kGroups>;

  std::byte* memory;
  StageRing<Shape::kXStages> x_ring;
  StageRing<Shape::kWeightStages> weight_ring;

  __device__ explicit WideStages(std::byte* shared)
      : memory(shared),
        x_ring{reinterpret_cast<uint64_t*>(shared + Shape::kBarriersAt)},
        weight_ring{x_ring.barriers + 3 * Shape::kXStages} {}
  __device__ void init() const {
    x_ring.init(Shape::kStrips);
    weight_ring.init(Shape::kStrips);
    for (int i = 0; i < Shape::kXStages; ++i) cuda::ptx::mbarrier_init(x_ring.barriers + 2 * Shape::kXStages + i, 1);
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ std::byte* x() const { return memory + x_ring.slot * Shape::kXBytes; }
  __device__ std::byte* weights() const { return memory + Shape::kWeightsAt + weight_ring.slot * Shape::kWeightBytes; }
  // Sums of x over groups, of the stage of x: [group][row].
  __device__ float* totals() const {
    return reinterpret_cast<float*>(memory + Shape::kTotalsAt + x_ring.slot * Shape::kTotalBytes);
  }
  __device__ uint64_t* totals_full() const { return x_ring.barriers + 2 * Shape::kXStages + x_ring.slot; }
};

// What a block does at a time: strips of outputs with a tile of rows, and one segment or all.
struct WideItem {
  int first_row, row_tile;
  int first, strips;  // places
  int first_segment;
};

template <int kRows, int kStrips>
struct WideItems {
  const MultiplyArgs& args;
  int row_tiles, splits, count;

  __device__ WideItems(const MultiplyArgs& args_, int rows)
      : args(args_),
        row_tiles((rows + kRows - 1) / kRows),
        splits(args_.segments / args_.block_segments),
        count(row_tiles * splits * ((args_.places + kStrips - 1) / kStrips)) {}
  __device__ WideItem operator[](int i) const {
    const int row_tile = i % row_tiles, part = i / row_tiles;
    const int first = part / splits * kStrips;
    return {row_tile * kRows, row_tile, first, end_of_strips(args, first, kStrips) - first,
            part % splits * args.block_segments};
  }
  __device__ int tiles() const { return args.block_segments * args.segment_tiles; }
};

// By a warp, a strip's tiles to a lane.
template <class Stages, class Items>
__device__ inline void bring_weights(const MultiplyArgs& args, const Items& items, Stages stages, int tile_bytes) {
  using Shape = typename Stages::Shape;
  const int lane = lane_index(), k_tiles = args.segments * args.segment_tiles;
  for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x)) {
    const WideItem item = items[i];
    const std::byte* from = nullptr;
    if (lane < item.strips) {
      const int place = item.first + lane;
      const LinearPart& part = part_of(args, place);
      const int64_t first =
          static_cast<int64_t>(place - part.first_place) * k_tiles + item.first_segment * args.segment_tiles;
      from = part.tiles + first * tile_bytes;
    }
    for (int left = items.tiles(); left > 0; left -= Shape::kStageTiles) {
      const int bytes = (left < Shape::kStageTiles ? left : Shape::kStageTiles) * tile_bytes;
      auto& ring = stages.weight_ring;
      ring.wait_empty();
      if (lane == 0) cuda::ptx::mbarrier_arrive_expect(ring.full(), item.strips * bytes);
      __syncwarp();
      if (from != nullptr) {
        cuda::ptx::bulk_load(stages.weights() + lane * Shape::kStageTiles * tile_bytes, from, bytes, ring.full());
        from += bytes;
      }
      ring.advance();
    }
  }
}

// By one thread.
template <class Stages, class Items>
__device__ inline void bring_x(const MultiplyArgs& args, const WideX& x_maps, const Items& items, Stages stages) {
  for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x)) {
    const WideItem item = items[i];
    const cuda::TensorMap* map = x_maps.of_part + part_index(args, item.first);
    const int first = item.first_segment * args.segment_tiles;
    for (int t = first; t < first + items.tiles(); ++t) {
      stages.x_ring.wait_empty();
      cuda::ptx::mbarrier_arrive_expect(stages.x_ring.full(), Stages::Shape::kXBytes);
      cuda::ptx::tensor_load(stages.x(), map, t * static_cast<int>(kTileIns), item.first_row, stages.x_ring.full());
      stages.x_ring.advance();
    }
  }
}

// Sums of x over groups, for minima; a warp takes every kWarps-th tile of x.
template <class Operand, int kRows, int kWarps, class Stages, class Items>
__device__ inline void sum_x(const Items& items, Stages stages, int warp) {
  constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  constexpr int kGroup = Operand::kGroupSteps;
  const int lane = lane_index();
  int turn = 0;
  for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x)) {
    for (int t = 0; t < items.tiles(); ++t, stages.x_ring.advance()) {
      if (turn++ % kWarps != warp) continue;
      stages.x_ring.wait_full();
      const uint32_t x = cuda::ptx::shared_address(stages.x()) + lane % 8 * 128;
      float* totals = stages.totals();
#pragma unroll 2
      for (int c = 0; c < kRows / 8; ++c) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          uint32_t b[4];
          cuda::ptx::load_matrix_x4(b, x + c * 1024 + ((4 * pair + lane / 8) ^ lane % 8) * 16);
          float total[4] = {};
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            cuda::ptx::mma_bf16(total, kOnes, b[2 * s], b[2 * s + 1]);
            if (kGroup == 2 && s == 0) continue;
            const int group = kGroup == 2 ? pair : 2 * pair + s;
            if (lane < 4) *reinterpret_cast<float2*>(totals + group * kRows + c * 8 + 2 * lane) = {total[0], total[1]};
            for (float& sum : total) sum = 0;
          }
        }
      }
      __syncwarp();
      if (lane == 0) cuda::ptx::mbarrier_arrive(stages.totals_full());
    }
  }
}

// sums are of this thread's outputs and rows as wgmma lays them out: sums[4 j + i] of output lane / 4 + 8 (i / 2) of
// the warp's strip and row 8 j + lane % 4 * 2 + i % 2.
template <int kRows>
using WideSums = float[kRows / 2];

// Where x lies for the step `step` of a tile.
__device__ inline uint64_t x_descriptor(const std::byte* x, int step) {
  return cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(x), 0, 1024, cuda::ptx::Swizzle::k128) + step * 2;
}

// A tile's four steps, of BF16 weights where they lie: queued.
template <int kRows>
__device__ inline void multiply_wide(const std::byte* weights, const std::byte* x, bool fresh, WideSums<kRows>& sums) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  const uint64_t a = cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(weights + group * 4 * Bf16Operand::kBytes),
                                                 128, 1024, cuda::ptx::Swizzle::kNone);
  cuda::ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    cuda::ptx::wgmma_bf16_shared<kRows>(sums, a + step * 16, x_descriptor(x, step), !(fresh && step == 0));
  }
  cuda::ptx::wgmma_commit();
}

template <class Operand, int kRows>
__device__ inline void multiply_wide(const Operand& w, const std::byte* x, bool fresh, WideSums<kRows>& sums) {
  uint32_t a[4][Operand::kParts][4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    for (int part = 0; part < Operand::kParts; ++part) w.a(step, part, a[step][part]);
  }
  cuda::ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    for (int part = 0; part < Operand::kParts; ++part) {
      cuda::ptx::wgmma_bf16<kRows>(sums, a[step][part], x_descriptor(x, step), !(fresh && step == 0 && part == 0));
    }
  }
  cuda::ptx::wgmma_commit();
  cuda::ptx::wgmma_wait<0>();
}

// The same for groups: their products from zero, then times their scales, while the next group is multiplied where
// registers suffice for two.
template <class Operand, int kRows>
__device__ inline void multiply_wide_groups(const Operand& w, const std::byte* x, const float* totals,
                                            WideSums<kRows>& sums) {
  constexpr int kGroup = Operand::kGroupSteps, kCount = 4 / kGroup, kAhead = kRows <= 64 && kCount > 1 ? 2 : 1;
  WideSums<kRows> product[kAhead];
  uint32_t a[kAhead][kGroup][4];
  const auto queue = [&](int group) {
    const int at = group % kAhead;
#pragma unroll
    for (int s = 0; s < kGroup; ++s) w.a(group * kGroup + s, 0, a[at][s]);
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kGroup; ++s) {
      cuda::ptx::wgmma_bf16<kRows>(product[at], a[at][s], x_descriptor(x, group * kGroup + s), s > 0);
    }
    cuda::ptx::wgmma_commit();
  };
  if constexpr (kAhead == 2) queue(0);
#pragma unroll
  for (int group = 0; group < kCount; ++group) {
    if (group + kAhead - 1 < kCount) {
      queue(group + kAhead - 1);
      cuda::ptx::wgmma_wait<kAhead - 1>();
    } else {
      cuda::ptx::wgmma_wait<0>();
    }
    WideSums<kRows>& done = product[group % kAhead];
    cuda::ptx::pin<kRows / 2>(done);
    const float scale[2] = {w.scale(group, 0), w.scale(group, 1)};
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] = fmaf(scale[i / 2 % 2], done[i], sums[i]);
    if constexpr (Operand::kMinima) {
      const float minus[2] = {-w.min(group, 0), -w.min(group, 1)};
      const float* total = totals + group * kRows + lane_index() % 4 * 2;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        const float2 of = *reinterpret_cast<const float2*>(total + j * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[4 * j + i] = fmaf(minus[i / 2], i % 2 == 0 ? of.x : of.y, sums[4 * j + i]);
      }
    }
  }
}

// A segment of the warp's strip from zero; `tile` counts those of the item, which has `tiles`.
template <class Operand, int kRows, class Stages>
__device__ inline void multiply_segment(Stages& stages, int& tile, int end, int tiles, WideSums<kRows>& sums) {
  using Shape = typename Stages::Shape;
  const auto release = [](uint64_t* barrier) {
    if (lane_index() == 0) cuda::ptx::mbarrier_arrive(barrier);
  };
  if constexpr (std::is_same_v<Operand, Bf16Operand>) {
    uint64_t *used_weights = nullptr, *used_x = nullptr;  // by products that may not be done yet
    for (bool fresh = true; tile < end; ++tile, fresh = false) {
      stages.weight_ring.wait_full();
      stages.x_ring.wait_full();
      multiply_wide<kRows>(stages.weights(), stages.x(), fresh, sums);
      cuda::ptx::wgmma_wait<1>();
      if (!fresh) release(used_weights), release(used_x);
      used_weights = stages.weight_ring.empty(), used_x = stages.x_ring.empty();
      stages.weight_ring.advance();
      stages.x_ring.advance();
    }
    cuda::ptx::wgmma_wait<0>();
    release(used_weights), release(used_x);
  } else {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if constexpr (Operand::kGroupSteps > 0) {
      for (float& sum : sums) sum = 0;
    }
    for (bool fresh = true; tile < end; ++tile, fresh = false) {
      const int at = tile % Shape::kStageTiles;
      if (at == 0) stages.weight_ring.wait_full();
      const Operand w(stages.weights() + (warp * Shape::kStageTiles + at) * Operand::kBytes);
      stages.x_ring.wait_full();
      if constexpr (Operand::kGroupSteps > 0) {
        if constexpr (Operand::kMinima) cuda::ptx::mbarrier_wait(stages.totals_full(), stages.x_ring.phase);
        multiply_wide_groups<Operand, kRows>(w, stages.x(), stages.totals(), sums);
      } else {
        multiply_wide<Operand, kRows>(w, stages.x(), fresh, sums);
      }
      __syncwarp();
      release(stages.x_ring.empty());
      stages.x_ring.advance();
      if (at + 1 < Shape::kStageTiles && tile + 1 < tiles) continue;
      release(stages.weight_ring.empty());
      stages.weight_ring.advance();
    }
  }
  cuda::ptx::pin<kRows / 2>(sums);
}

template <int kRows>
__device__ inline void store_sums(const MultiplyArgs& args, int place, int first_row, int rows,
                                  const WideSums<kRows>& sums) {
  const LinearPart& part = part_of(args, place);
  const int lane = lane_index();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int o = (place - part.first_place) * static_cast<int>(kTileOuts) + lane / 4 + 8 * half;
    if (o >= part.out) return;
    const float bias = part.bias != nullptr ? part.bias[o] : 0;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int row = first_row + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (row >= rows) continue;
      const float sum = sums[i / 2 * 4 + 2 * half + i % 2];
      store_output(part, row, o, part.bias != nullptr ? sum + bias : sum);
    }
  }
}

// Leaves a segment's sums; the last warp to do so for a strip takes them all, segments ascending.
template <int kRows>
__device__ inline void combine_sums(const MultiplyArgs& args, const WideItem& item, int place, int rows,
                                    WideSums<kRows>& sums) {
  const int lane = lane_index();
  const LinearPart& part = part_of(args, place);
  const int64_t sum = static_cast<int64_t>(item.row_tile) * args.strips + part.first_strip + place - part.first_place;
  float4* partials = reinterpret_cast<float4*>(args.partials) + sum * args.segments * (kRows / 8) * 32 + lane;
#pragma unroll
  for (int i = 0; i < kRows / 8; ++i) {
    partials[(item.first_segment * (kRows / 8) + i) * 32] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2],
                                                             sums[4 * i + 3]};
  }
  if (!last_to_arrive(args.counters + sum, args.segments)) return;
  for (int s = 0; s < args.segments; ++s) {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      const float4 v = __ldcg(partials + (s * (kRows / 8) + i) * 32);
      const float values[4] = {v.x, v.y, v.z, v.w};
      for (int j = 0; j < 4; ++j) sums[4 * i + j] = s == 0 ? values[j] : sums[4 * i + j] + values[j];
    }
  }
  store_sums<kRows>(args, place, item.first_row, rows, sums);
}

template <TileFormat kFormat, int kRows, int kGroups>
__global__ void __launch_bounds__(128 * (kGroups + 1),
                                  (WideShape<typename OperandOf<kFormat>::Type, kRows, kGroups>::kBlocks))
    linear_wide(const __grid_constant__ MultiplyArgs args, const __grid_constant__ WideX x_maps) {
  using Operand = typename OperandOf<kFormat>::Type;
  using Shape = WideShape<Operand, kRows, kGroups>;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  WideStages<Operand, kRows, kGroups> stages(shared);
  if (threadIdx.x == 0) stages.init();
  __syncthreads();
  cuda::ptx::let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, rows = step_rows(args);
  const WideItems<kRows, Shape::kStrips> items(args, rows);
  if (warp >= Shape::kStrips) {
    cuda::ptx::lower_registers<Shape::kFillerRegisters>();
    if (warp == Shape::kStrips) return bring_weights(args, items, stages, Operand::kBytes);
    cuda::ptx::wait_for_previous();
    if (warp == Shape::kStrips + 1) {
      if (lane_index() == 0) bring_x(args, x_maps, items, stages);
    } else if constexpr (Operand::kMinima) {
      sum_x<Operand, kRows, 2>(items, stages, warp - Shape::kStrips - 2);
    }
    return;
  }
  cuda::ptx::raise_registers<Shape::kRegisters>();
  cuda::ptx::wait_for_previous();
  for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x)) {
    const WideItem item = items[i];
    const int place = item.first + warp;
    WideSums<kRows> total;
    for (int segment = 0, tile = 0; segment < args.block_segments; ++segment) {
      WideSums<kRows> sums;
      multiply_segment<Operand, kRows>(stages, tile, tile + args.segment_tiles, items.tiles(), sums);
#pragma unroll
      for (int s = 0; s < kRows / 2; ++s) total[s] = segment == 0 ? sums[s] : total[s] + sums[s];
    }
    if (warp >= item.strips) continue;
    if (args.block_segments < args.segments) {
      combine_sums<kRows>(args, item, place, rows, total);
    } else {
      store_sums<kRows>(args, place, item.first_row, rows, total);
    }
  }
}

template <TileFormat kFormat, int kRows, int kGroups>
WideKernel wide_instance() {
  using Shape = WideShape<typename OperandOf<kFormat>::Type, kRows, kGroups>;
  return {linear_wide<kFormat, kRows, kGroups>,
          Shape::kSharedBytes,
          kRows,
          Shape::kStrips,
          Shape::kBlocks,
          Shape::kThreads};
}

template <TileFormat kFormat>
WideKernel wide_instance(int32_t rows) {
  if (rows <= 16) return wide_instance<kFormat, 16, kFewGroups>();
  if (rows <= 32) return wide_instance<kFormat, 32, kFewGroups>();
  if (rows <= 64) return wide_instance<kFormat, 64, kFewGroups>();
  return wide_instance<kFormat, 128, 2>();
}

}  // namespace weir
