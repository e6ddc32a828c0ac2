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
#define WEIR_GROUPS 1
#define WEIR_BLOCKS 2
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
  static constexpr int kBlocks = kRows > 64 ? 1 : kRows > 32 ? 2 : kRows > 16 ? 3 : 4;  // of a multiprocessor
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
  constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  constexpr int kGroup = Operand::kGroupSteps;
  const int lane = lane_index();
  int turn = 0;
  for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x)) {
    for (int t = items[i].segments * segment_tiles; t > 0; --t, stages.x_ring.advance()) {
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

__device__ inline void release(uint64_t* barrier) {
  if (lane_index() == 0) cuda::ptx::mbarrier_arrive(barrier);
}

// A turn of weights that become BF16 in registers: a group of steps with a scale, or a tile.
template <class Operand, int kRows>
struct WideTurn {
  static constexpr bool kScaled = Operand::kGroupSteps > 0;
  static constexpr int kSteps = kScaled ? Operand::kGroupSteps : 4;
  static constexpr int kOfTile = 4 / kSteps;

  uint32_t a[kSteps][Operand::kParts][4];
  float product[kScaled ? kRows / 2 : 1];  // from zero
  float scale[2], minus[2];
  const float* totals;
  uint64_t* used_x;  // free after the turn, or null

  // Queues the products of turn `turn` of a tile.
  __device__ void queue(const Operand& w, int turn, const std::byte* x, bool fresh, WideSums<kRows>& sums) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      for (int part = 0; part < Operand::kParts; ++part) w.a(turn * kSteps + s, part, a[s][part]);
    }
    if constexpr (kScaled) {
      for (int half = 0; half < 2; ++half) scale[half] = w.scale(turn, half);
    }
    if constexpr (Operand::kMinima) {
      for (int half = 0; half < 2; ++half) minus[half] = -w.min(turn, half);
    }
    cuda::ptx::pin<kSteps * Operand::kParts * 4>(a[0][0]);
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      for (int part = 0; part < Operand::kParts; ++part) {
        const bool begins = (kScaled || fresh) && s == 0 && part == 0;
        cuda::ptx::wgmma_bf16<kRows>(kScaled ? product : sums, a[s][part], x_descriptor(x, turn * kSteps + s), !begins);
      }
    }
    cuda::ptx::wgmma_commit();
  }
  // When they are done.
  __device__ void end(WideSums<kRows>& sums) {
    if constexpr (kScaled) {
      cuda::ptx::pin<kRows / 2>(product);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) sums[i] = fmaf(scale[i / 2 % 2], product[i], sums[i]);
    }
    if constexpr (Operand::kMinima) {
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        const float2 total = *reinterpret_cast<const float2*>(totals + lane_index() % 4 * 2 + j * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums[4 * j + i] = fmaf(minus[i / 2], i % 2 == 0 ? total.x : total.y, sums[4 * j + i]);
      }
    }
    if (used_x == nullptr) return;
    __syncwarp();
    release(used_x);
  }
};

// A segment of the warp's strip from zero; `tile` counts those of the item, which has `tiles`. While a turn multiplies,
// the weights of the next are converted, where registers suffice for two.
template <class Operand, int kRows, class Stages>
__device__ inline void multiply_segment(Stages& stages, int& tile, int segment_tiles, int tiles,
                                        WideSums<kRows>& sums) {
  using Shape = typename Stages::Shape;
  using Turn = WideTurn<Operand, kRows>;
  constexpr int kTurns = kRows <= 64 || !Turn::kScaled ? 2 : 1;
  const int warp = static_cast<int>(threadIdx.x) / 32, end = tile + segment_tiles;
  Turn turns[kTurns];
  if constexpr (Turn::kScaled) {
    for (float& sum : sums) sum = 0;
  }
  // kFirst: the set of the first turn; kFresh: of the first tile.
  const auto multiply_tile = [&]<int kFirst, bool kFresh>() {
    const int at = tile % Shape::kStageTiles;
    if (at == 0) stages.weight_ring.wait_full();
    const Operand w(stages.weights() + (warp * Shape::kStageTiles + at) * Operand::kBytes);
    stages.x_ring.wait_full();
    if constexpr (Operand::kMinima) cuda::ptx::mbarrier_wait(stages.totals_full(), stages.x_ring.phase);
#pragma unroll
    for (int t = 0; t < Turn::kOfTile; ++t) {
      Turn& turn = turns[(kFirst + t) % kTurns];
      turn.totals = stages.totals() + t * kRows;
      turn.used_x = t == Turn::kOfTile - 1 ? stages.x_ring.empty() : nullptr;
      turn.queue(w, t, stages.x(), kFresh && t == 0, sums);
      if constexpr (kTurns == 1) {
        cuda::ptx::wgmma_wait<0>();
        turn.end(sums);
      } else if (Turn::kOfTile == 1 ? !kFresh : t > 0) {
        cuda::ptx::wgmma_wait<1>();
        turns[(kFirst + t + 1) % kTurns].end(sums);
      }
    }
    if constexpr (kTurns == 2 && Turn::kOfTile > 1) {
      cuda::ptx::wgmma_wait<0>();
      turns[1].end(sums);
    }
    stages.x_ring.advance();
    if (at + 1 == Shape::kStageTiles || tile + 1 == tiles) {
      __syncwarp();
      release(stages.weight_ring.empty());
      stages.weight_ring.advance();
    }
    ++tile;
  };
  multiply_tile.template operator()<0, true>();
  if constexpr (kTurns == 1 || Turn::kOfTile > 1) {
    while (tile < end) multiply_tile.template operator()<0, false>();
  } else {
    const auto end_last = [&]<int kSet>() {
      cuda::ptx::wgmma_wait<0>();
      turns[kSet].end(sums);
    };
    for (;;) {  // the compiler must see that the sets alternate
      if (tile == end) return end_last.template operator()<0>();
      multiply_tile.template operator()<1, false>();
      if (tile == end) return end_last.template operator()<1>();
      multiply_tile.template operator()<0, false>();
    }
  }
}

// The same of BF16 tiles, operands where they lie.
template <int kRows, class Stages>
__device__ inline void multiply_segment_in_place(Stages& stages, int segment_tiles, WideSums<kRows>& sums) {
  uint64_t *used_weights = nullptr, *used_x = nullptr;  // by products that may not be done yet
  for (int t = 0; t < segment_tiles; ++t) {
    stages.weight_ring.wait_full();
    stages.x_ring.wait_full();
    multiply_wide<kRows>(stages.weights(), stages.x(), t == 0, sums);
    cuda::ptx::wgmma_wait<1>();
    if (t > 0) release(used_weights), release(used_x);
    used_weights = stages.weight_ring.empty(), used_x = stages.x_ring.empty();
    stages.weight_ring.advance();
    stages.x_ring.advance();
  }
  cuda::ptx::wgmma_wait<0>();
  release(used_weights), release(used_x);
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

// The same for 64 outputs of a group of warps that lie in one part, and rows that can be written 16 bytes at a time: so
// they are, after passing through shared memory.
struct WideStore {
  static constexpr int kPitch = WideStaging::kPitch, kPass = WideStaging::kRows;

  const LinearPart& part;
  int first_out;
  bool possible;

  __device__ WideStore(const MultiplyArgs& args, const WideItem& item, int group)
      : part(part_of(args, item.first + 4 * group)),
        first_out((item.first + 4 * group - part.first_place) * static_cast<int>(kTileOuts)),
        possible(first_out + 64 <= part.out && reinterpret_cast<uintptr_t>(part.y) % 16 == 0 &&
                 part.y_stride % 4 == 0) {}

  template <int kRows>
  __device__ void store(int first_row, int rows, const WideSums<kRows>& sums, float* staging) const {
    const int thread = static_cast<int>(threadIdx.x) % 128, barrier = 1 + static_cast<int>(threadIdx.x) / 128;
    const int lane = lane_index(), own = thread / 32 * 16 + lane / 4;
    float bias[2] = {};
    if (part.bias != nullptr) {
      for (int half = 0; half < 2; ++half) bias[half] = part.bias[first_out + own + 8 * half];
    }
#pragma unroll
    for (int first = 0; first < kRows; first += kPass) {
      cuda::ptx::named_barrier_sync(barrier, 128);
#pragma unroll
      for (int i = 0; i < kPass / 2; ++i) {
        const float sum = sums[first / 2 + i];
        staging[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kPitch + own + i / 2 % 2 * 8] =
            part.bias != nullptr ? sum + bias[i / 2 % 2] : sum;
      }
      cuda::ptx::named_barrier_sync(barrier, 128);
#pragma unroll
      for (int i = 0; i < kPass / 8; ++i) {
        const int row = first_row + first + thread / 16 + 8 * i, o = thread % 16 * 4;
        if (row >= rows) break;
        const float4 v = *reinterpret_cast<const float4*>(staging + (thread / 16 + 8 * i) * kPitch + o);
        const int64_t at = row * part.y_stride + first_out + o;
        if (part.y_type == RowType::kBf16) {
          *reinterpret_cast<uint2*>(static_cast<uint16_t*>(part.y) + at) = {cuda::pack_bf16(v.x, v.y),
                                                                            cuda::pack_bf16(v.z, v.w)};
        } else {
          *reinterpret_cast<float4*>(static_cast<float*>(part.y) + at) = v;
        }
      }
    }
  }
};

// Where the sums of segments of a strip meet in memory, those of segment s at s * kRows / 8 * 32. A block with several
// from the first on leaves their sum in the first one's place.
template <int kRows>
struct WideMeeting {
  float4* sums;
  uint32_t* counter;

  __device__ WideMeeting(const MultiplyArgs& args, const WideItem& item, int place) {
    const LinearPart& part = part_of(args, place);
    const int64_t strip = part.first_strip + place - part.first_place;
    const int64_t at = static_cast<int64_t>(item.row_tile) * args.strips + strip;
    sums = reinterpret_cast<float4*>(args.partials) + at * args.segments * (kRows / 8) * 32 + lane_index();
    counter = args.counters + at;
  }
  __device__ void leave(int segment, const WideSums<kRows>& own) const {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      sums[(segment * (kRows / 8) + i) * 32] = {own[4 * i], own[4 * i + 1], own[4 * i + 2], own[4 * i + 3]};
    }
  }
  // Segments ascending, those of the first block together.
  __device__ void add_all(const MultiplyArgs& args, WideSums<kRows>& total) const {
    for (int s = 0; s < args.segments; s += s == 0 ? args.block_segments : 1) {
      float4 part[kRows / 8];
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) part[i] = __ldcg(sums + (s * (kRows / 8) + i) * 32);
#pragma unroll
      for (int i = 0; i < kRows / 8; ++i) {
        const float values[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
        for (int j = 0; j < 4; ++j) total[4 * i + j] = s == 0 ? values[j] : total[4 * i + j] + values[j];
      }
    }
  }
};

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
      sum_x<Operand, kRows, 2>(items, args.segment_tiles, stages, warp - Shape::kStrips - 2);
    }
    return;
  }
  cuda::ptx::raise_registers<Shape::kRegisters>();
  cuda::ptx::wait_for_previous();
  for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x)) {
    const WideItem item = items[i];
    const int place = item.first + warp;
    const bool split = item.segments < args.segments;
    WideSums<kRows> total;
    for (int segment = 0, tile = 0; segment < item.segments; ++segment) {
      WideSums<kRows> sums;
      if constexpr (std::is_same_v<Operand, Bf16Operand>) {
        multiply_segment_in_place<kRows>(stages, args.segment_tiles, sums);
      } else {
        multiply_segment<Operand, kRows>(stages, tile, args.segment_tiles, item.segments * args.segment_tiles, sums);
      }
      cuda::ptx::pin<kRows / 2>(sums);
      if (item.first_segment > 0 && warp < item.strips) {
        WideMeeting<kRows>(args, item, place).leave(item.first_segment + segment, sums);
      }
#pragma unroll
      for (int s = 0; s < kRows / 2; ++s) total[s] = segment == 0 ? sums[s] : total[s] + sums[s];
    }
    if constexpr (kRows > 64) {
      const WideStore whole(args, item, warp / 4);
      if (whole.possible && !split) {
        whole.store<kRows>(item.first_row, rows, total, stages.staging(warp / 4));
        continue;
      }
    }
    if (warp >= item.strips) continue;
    if (split) {
      const WideMeeting<kRows> meeting(args, item, place);
      if (item.first_segment == 0) meeting.leave(0, total);
      if (!last_to_arrive(meeting.counter, args.segments, item.segments)) continue;
      meeting.add_all(args, total);
    }
    store_sums<kRows>(args, place, item.first_row, rows, total);
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
