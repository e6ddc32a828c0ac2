// What the kernel of linear_resident_cuda.cuh has in shared memory, and its products.
#pragma once

#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

#ifndef WEIR_STAMP
#define WEIR_STAMP(event)
#define WEIR_TILE_STAMP(tile)
#define WEIR_FIRST_STAMP(first)
#endif

namespace weir {

inline constexpr int kResidentTiles = kSegmentIns / kTileIns;  // of x, at most

constexpr int64_t resident_x_bytes(int64_t segment_tiles, int64_t rows) {
  return segment_tiles * rows * 128 + 8 * kResidentTiles;
}

// A block's segment and its units: 64 places each, from `first` on.
struct ResidentShare {
  int segment, first, units;

  __device__ explicit ResidentShare(const MultiplyArgs& args) {
    const int blocks = args.splits, all = (args.places + 3) / 4;
    segment = static_cast<int>(blockIdx.x) / blocks;
    const int block = static_cast<int>(blockIdx.x) - segment * blocks;
    const int begin = all * block / blocks, end = all * (block + 1) / blocks;
    first = 4 * begin;
    units = end - begin;
  }
  // Of a warp's strip in the block's unit-th turn. Blocks of other segments have other turns: then none is the last to
  // be done with all of them, and has all sums of segments to add.
  __device__ int place(int turn, int warp) const { return first + (turn + segment) % units * 4 + warp % 4; }
};

// Rows of x in a segment as BF16, as wgmma reads them: tiles of 64 k, rows of 128 bytes, swizzled.
template <int kRows>
struct ResidentX {
  static constexpr int kTileBytes = kRows * 128;

  std::byte* tiles;
  uint64_t* full;  // of each tile
  int count;

  __device__ ResidentX(const MultiplyArgs& args, std::byte* shared)
      : tiles(shared),
        full(reinterpret_cast<uint64_t*>(shared + args.segment_tiles * kTileBytes)),
        count(args.segment_tiles) {}
  // By one thread, which also brings them.
  __device__ void init() const {
    for (int t = 0; t < count; ++t) {
      cuda::ptx::mbarrier_init(full + t, 1);
      cuda::ptx::mbarrier_arrive_expect(full + t, kTileBytes);
    }
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ void bring(const cuda::TensorMap* map, int first_tile) const {
    for (int t = 0; t < count; ++t) {
      const int k = (first_tile + t) * static_cast<int>(kTileIns);
      cuda::ptx::tensor_load(tiles + t * kTileBytes, map, k, 0, full + t);
    }
  }
  __device__ void wait(int tile) const { cuda::ptx::mbarrier_wait(full + tile, 0); }
};

// Tiles of a group of warps, those of its units one after the other, on their way through its part of shared memory: a
// stage has some of each warp's strip. A warp of another group fills the stages.
template <class Operand>
struct ResidentRing {
  static constexpr int kStageTiles = Operand::kBytes < 800 ? 2 : 1;
  static constexpr int kStripBytes = kStageTiles * Operand::kBytes;
  static constexpr int kStageBytes = 4 * kStripBytes;

  std::byte* stages;
  uint64_t* full;
  int count;
  int slot = 0;
  uint32_t phase = 0;

  // Of group `group`; kStageBytes and 16 for each stage, at a multiple of 16.
  __device__ ResidentRing(std::byte* shared, int group, int count_)
      : stages(shared + group * count_ * (kStageBytes + 16)),
        full(reinterpret_cast<uint64_t*>(stages + count_ * kStageBytes)),
        count(count_) {}
  // By one thread.
  __device__ void init() const {
    for (int i = 0; i < count; ++i) {
      cuda::ptx::mbarrier_init(full + i, 1);
      cuda::ptx::mbarrier_init(full + count + i, 4);
    }
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ void advance() {
    if (++slot == count) {
      slot = 0;
      phase ^= 1;
    }
  }

  // For the group's warps: tile `i` of a stage that is there.
  __device__ void wait() const { cuda::ptx::mbarrier_wait(full + slot, phase); }
  __device__ Operand tile(int i) const {
    return Operand(stages + slot * kStageBytes + static_cast<int>(threadIdx.x) / 32 % 4 * kStripBytes +
                   i * Operand::kBytes);
  }
  // racecheck stages: a stage is written after its readers have arrived here, and read after it has.
  __device__ void pass() {
    __syncwarp();
    if (lane_index() == 0) cuda::ptx::mbarrier_arrive(full + count + slot);
    advance();
  }

  // By a warp, a strip to a lane; waits for the kernel before when half of the stages are on their way, so that x comes
  // before the rest. Strips that there are not are the last one again.
  __device__ void fill(const MultiplyArgs& args, const ResidentShare& share, int group, int groups) {
    const int lane = lane_index(), total = args.segment_tiles * Operand::kBytes;
    int until_x = count / 2;
    for (int unit = group; unit < share.units; unit += groups) {
      const int own = share.place(unit, lane), place = own < args.places ? own : args.places - 1;
      const LinearPart& part = part_of(args, place);
      const int64_t run = static_cast<int64_t>(place - part.first_place) * args.segments + share.segment;
      const std::byte* from = part.tiles + run * total;
      for (int left = total; left > 0; left -= kStripBytes, from += kStripBytes) {
        const int bytes = left < kStripBytes ? left : kStripBytes;
        if (until_x-- == 0) cuda::ptx::wait_for_previous();
        cuda::ptx::mbarrier_wait(full + count + slot, phase ^ 1);
        if (lane == 0) cuda::ptx::mbarrier_arrive_expect(full + slot, 4 * bytes);
        __syncwarp();
        if (lane < 4) cuda::ptx::bulk_load(stages + slot * kStageBytes + lane * kStripBytes, from, bytes, full + slot);
        advance();
      }
    }
  }
};

// Products of a segment. A turn is a tile, or a group of steps with a scale but at most two; while one turn multiplies,
// the weights of the next become BF16.
template <class Operand, int kRows>
class ResidentProduct {
 public:
  static constexpr int kGroupSteps = Operand::kGroupSteps;
  static constexpr bool kScaled = kGroupSteps > 0;
#ifndef STEPS
#define STEPS 4
#endif
  static constexpr int kSteps = kGroupSteps == 1 ? 1 : kScaled ? 2 : STEPS;  // of a turn
  static constexpr int kTurns = 4 / kSteps;                                  // of a tile
  static constexpr int kGroupTurns = kScaled ? kGroupSteps / kSteps : 0;
#ifndef SETS
#define SETS 2
#endif
  static constexpr int kSets = kScaled ? 2 : SETS;

  __device__ explicit ResidentProduct(const ResidentX<kRows>& x)
      : x_(x), b_((cuda::ptx::shared_address(x.tiles) & 0x3ffff) >> 4) {}

  // Calls `early` after some tiles.
  template <class Ring, class Early>
  __device__ __forceinline__ void multiply_segment(Ring& ring, int tiles, bool x_is_new, StripSums<kRows>& sums,
                                                   const Early& early) {
    constexpr int kStage = Ring::kStageTiles;
    Turns turns;
    for (float& sum : sums) sum = 0;
    if constexpr (kScaled) {
      for (float& p : turns.product) p = 0;
      turns.scale[0] = turns.scale[1] = 0;
    }
    uint32_t b = b_;
    int t = 0;
#pragma unroll 1
    for (; t + kStage <= tiles; t += kStage) {
      multiply_stage<kStage>(ring, x_is_new, t, b, turns, sums);
      b += kStage * (ResidentX<kRows>::kTileBytes / 16);
      if (t == 2 * kStage) early();
    }
    if (t <= 2 * kStage) early();
    if (t < tiles) {
      if constexpr (!kScaled) cuda::ptx::wgmma_wait<0>();
      multiply_stage<1>(ring, x_is_new, t, b, turns, sums);
    }
    cuda::ptx::wgmma_wait<0>();
    if constexpr (kScaled) {
      add(turns, sums);
    } else {
      cuda::ptx::pin<kRows / 2>(sums);
    }
  }

 private:
  struct Turns {
    uint32_t a[kSets][kSteps][4];
    float product[kScaled ? kRows / 2 : 1];  // of the group before, from zero
    float scale[2];
  };

  template <int kTiles, class Ring>
  __device__ void multiply_stage(Ring& ring, bool x_is_new, int t, uint32_t b, Turns& turns,
                                 StripSums<kRows>& sums) {
    ring.wait();
    const Operand first = ring.tile(0), second = ring.tile(kTiles - 1);
    ring.pass();
    if (x_is_new) x_.wait(t + kTiles - 1);
    WEIR_TILE_STAMP(t);
    multiply_tile(first, 0, b, turns, sums);
    if constexpr (kTiles == 2) multiply_tile(second, kTurns, b + ResidentX<kRows>::kTileBytes / 16, turns, sums);
    static_assert(kTiles <= 2);
  }
  __device__ static void multiply_tile(const Operand& w, int first_turn, uint32_t b, Turns& turns,
                                       StripSums<kRows>& sums) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      uint32_t(&own)[kSteps][4] = turns.a[(first_turn + turn) % kSets];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) w.a(turn * kSteps + s, 0, own[s]);
      cuda::ptx::pin<kSteps * 4>(own[0]);
      if constexpr (!kScaled) {
        queue(sums, own, b + turn * kSteps * 2, true);
        cuda::ptx::wgmma_wait<kSets - 1>();
      } else if (turn % kGroupTurns == 0) {
        cuda::ptx::wgmma_wait<0>();
        add(turns, sums);
        queue(turns.product, own, b + turn * kSteps * 2, false);
        for (int half = 0; half < 2; ++half) turns.scale[half] = w.scale(turn / kGroupTurns, half);
      } else {
        queue(turns.product, own, b + turn * kSteps * 2, true);
        cuda::ptx::wgmma_wait<1>();
      }
    }
  }
  __device__ static void queue(float* d, const uint32_t (&a)[kSteps][4], uint32_t b, bool more) {
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      cuda::ptx::wgmma_bf16<kRows>(d, a[s], uint64_t{kUpper} << 32 | (b + s * 2), more || s > 0);
    }
    cuda::ptx::wgmma_commit();
  }
  __device__ static void add(Turns& turns, StripSums<kRows>& sums) {
    cuda::ptx::pin<kRows / 2>(turns.product);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] = fmaf(turns.scale[i / 2 % 2], turns.product[i], sums[i]);
  }

  // Of a descriptor: 1024 bytes from eight rows to the next, swizzled.
  static constexpr uint32_t kUpper =
      static_cast<uint32_t>(cuda::ptx::wgmma_descriptor(0, 0, 1024, cuda::ptx::Swizzle::k128) >> 32);

  const ResidentX<kRows>& x_;
  uint32_t b_;  // the lower half, for the first tile of x
};

}  // namespace weir
