// What passes through shared memory in the kernel of linear_wide_cuda.cuh, and the warps that bring it.
#pragma once

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

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
  // racecheck stages: what lies in a stage is written after its readers have arrived here, and read after it has.
  __device__ void wait_full() const { cuda::ptx::mbarrier_wait(full(), phase); }
  __device__ void wait_empty() const { cuda::ptx::mbarrier_wait(empty(), phase ^ 1); }
  __device__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Rows of 64 outputs on their way through shared memory.
struct WideStaging {
  static constexpr int kRows = 32, kPitch = 68;  // floats of a row
  static constexpr int kBytes = kRows * kPitch * 4;
};

template <class Operand, int kRows, int kGroups_>
struct WideShape {
  static constexpr int kGroups = kGroups_;
  static constexpr int kStrips = 4 * kGroups;           // a warp's each
  static constexpr int kThreads = 128 * (kGroups + 1);  // registers are dealt out by groups of four warps
  // Of a multiprocessor: decoding takes many warps.
  static constexpr int kBlocks = kRows > 64 ? 1 : kRows > 32 || Operand::kBytes >= 2048 ? 2 : kRows > 16 ? 3 : 4;
  // Of a thread that fills rings, and of one that multiplies.
  static constexpr int kAllRegisters = 65536 / (kThreads * kBlocks) / 8 * 8;
  static constexpr int kFillerRegisters = Operand::kMinima ? 56 : 32;
  static constexpr int kRegisters = (kAllRegisters * (kGroups + 1) - kFillerRegisters) / kGroups / 8 * 8;
  static constexpr int kStageTiles = Operand::kBytes < 1024 ? 2 : 1;
  static constexpr int kGroupsOfTile = Operand::kGroupSteps == 0 ? 0 : 4 / Operand::kGroupSteps;

  static constexpr int kXBytes = kRows * 128;
  static constexpr int kTotalBytes = Operand::kMinima ? kGroupsOfTile * kRows * 4 : 0;
  static constexpr int kWeightBytes = kStrips * kStageTiles * Operand::kBytes;
  static constexpr int kRoom = 225 * 1024 / kBlocks;
  static constexpr int kStagingBytes = kRows > 64 ? kGroups* WideStaging::kBytes : 0;
  static constexpr int kXStages = 6;
  static constexpr int kFit = (kRoom - kStagingBytes - kXStages * (kXBytes + kTotalBytes)) / kWeightBytes;
  static constexpr int kWeightStages = kFit < 16 ? kFit : 16;
  static constexpr int kWeightsAt = kXStages * kXBytes;
  static constexpr int kTotalsAt = kWeightsAt + kWeightStages * kWeightBytes;
  static constexpr int kStagingAt = kTotalsAt + kXStages * kTotalBytes;
  static constexpr int kBarriersAt = kStagingAt + kStagingBytes;
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
  // Of a group of warps, on the way to y.
  __device__ float* staging(int group) const {
    return reinterpret_cast<float*>(memory + Shape::kStagingAt + group * (Shape::kStagingBytes / Shape::kGroups));
  }
  __device__ uint64_t* totals_full() const { return x_ring.barriers + 2 * Shape::kXStages + x_ring.slot; }
};

// What a block does at a time: strips of outputs with a tile of rows, and some segments.
struct WideItem {
  int first_row, row_tile;
  int first, strips;  // places
  int first_segment, segments;
};

template <int kRows, int kStrips>
struct WideItems {
  const MultiplyArgs& args;
  int row_tiles, splits, count;

  __device__ WideItems(const MultiplyArgs& args_, int rows)
      : args(args_),
        row_tiles((rows + kRows - 1) / kRows),
        splits((args_.segments + args_.block_segments - 1) / args_.block_segments),
        count(row_tiles * splits * ((args_.places + kStrips - 1) / kStrips)) {}
  __device__ WideItem operator[](int i) const {
    const int row_tile = i % row_tiles, part = i / row_tiles;
    const int first = part / splits * kStrips, segment = part % splits * args.block_segments;
    const int left = args.segments - segment;
    return {row_tile * kRows,
            row_tile,
            first,
            end_of_strips(args, first, kStrips) - first,
            segment,
            left < args.block_segments ? left : args.block_segments};
  }
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
    for (int left = item.segments * args.segment_tiles; left > 0; left -= Shape::kStageTiles) {
      const int bytes = (left < Shape::kStageTiles ? left : Shape::kStageTiles) * tile_bytes;
      auto& ring = stages.weight_ring;
      ring.wait_empty();
      if (lane == 0) cuda::ptx::mbarrier_arrive_expect(ring.full(), item.strips * bytes);
      __syncwarp();
      if (from != nullptr) {
        cuda::ptx::bulk_load(stages.weights() + lane * Shape::kStageTiles * tile_bytes, from, bytes, ring.full(),
                             cuda::ptx::read_once());
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
    for (int t = first; t < first + item.segments * args.segment_tiles; ++t) {
      stages.x_ring.wait_empty();
      cuda::ptx::mbarrier_arrive_expect(stages.x_ring.full(), Stages::Shape::kXBytes);
      cuda::ptx::tensor_load(stages.x(), map, t * static_cast<int>(kTileIns), item.first_row, stages.x_ring.full());
      stages.x_ring.advance();
    }
  }
}

// Sums of x over groups, for minima; a warp takes every kWarps-th tile of x.
template <class Operand, int kRows, int kWarps, class Stages, class Items>
__device__ inline void sum_x(const Items& items, int segment_tiles, Stages stages, int warp) {
  const int lane = lane_index();
  int turn = 0;
  for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x)) {
    for (int t = items[i].segments * segment_tiles; t > 0; --t, stages.x_ring.advance()) {
      if (turn++ % kWarps != warp) continue;
      stages.x_ring.wait_full();
      const uint32_t x = cuda::ptx::shared_address(stages.x()) + lane % 8 * 128;
      float* totals = stages.totals();
#pragma unroll 4
      for (int c = 0; c < kRows / 8; ++c) {
        uint32_t b[2][4];
        for (int pair = 0; pair < 2; ++pair) {
          cuda::ptx::load_matrix_x4(b[pair], x + c * 1024 + ((4 * pair + lane / 8) ^ lane % 8) * 16);
        }
        sum_groups<Operand>(b, totals + c * 8, kRows, 2);
      }
      __syncwarp();
      if (lane == 0) cuda::ptx::mbarrier_arrive(stages.totals_full());
    }
  }
}

}  // namespace weir
