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

// Rows of x in a segment as BF16, as wgmma reads them: tiles of 64 k, rows of 128 bytes, swizzled. Each block of a
// cluster brings some of the rows for all of them.
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
  __device__ void bring(const cuda::TensorMap* map, int first_tile, int cluster) const {
    const int rank = static_cast<int>(blockIdx.x) % cluster, rows = kRows / cluster;
    for (int t = 0; t < count; ++t) {
      std::byte* to = tiles + t * kTileBytes + rank * rows * 128;
      const int k = (first_tile + t) * static_cast<int>(kTileIns);
      if (cluster == 1) {
        cuda::ptx::tensor_load(to, map, k, 0, full + t);
      } else {
        cuda::ptx::tensor_load_multicast(to, map, k, rank * rows, full + t, (1u << cluster) - 1);
      }
    }
  }
  __device__ void wait(int tile) const { cuda::ptx::mbarrier_wait(full + tile, 0); }
};

// A warp's tiles, those of its units one after the other, on their way through its part of shared memory.
template <class Operand>
class ResidentRing {
 public:
  static constexpr int kStageTiles = Operand::kBytes < 800 ? 2 : 1;
  static constexpr int kStageBytes = kStageTiles * Operand::kBytes;

  __device__ ResidentRing(std::byte* shared, const MultiplyArgs& args, const ResidentShare& share)
      : stages_(shared),
        full_(reinterpret_cast<uint64_t*>(shared + args.ring_stages * kStageBytes)),
        stage_count_(args.ring_stages),
        args_(args),
        share_(share),
        unit_(static_cast<int>(threadIdx.x) / 128) {
    if (lane_index() == 0) {
      for (int i = 0; i < stage_count_; ++i) cuda::ptx::mbarrier_init(full_ + i, 1);
      cuda::ptx::mbarrier_fence_init();
    }
    __syncwarp();
    begin_unit();
  }
  // Requests the first stages.
  __device__ void fill(int begin, int end) {
    for (int i = begin; i < end; ++i) fetch(i);
  }
  __device__ int stages() const { return stage_count_; }

  // Tile `i` of the stage.
  __device__ Operand tile(int i) const { return Operand(stages_ + slot_ * kStageBytes + i * Operand::kBytes); }
  __device__ void wait() const { cuda::ptx::mbarrier_wait(full_ + slot_, phase_); }
  // The stage has been read.
  __device__ void pass() {
    __syncwarp();  // racecheck ring: a stage is fetched into when all lanes have read it; the tool misses that
    fetch(slot_);
    if (++slot_ == stage_count_) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  // Warps beyond the last strip multiply it too, for nobody.
  __device__ void begin_unit() {
    if (unit_ >= share_.units) return;
    const int own = share_.place(unit_, static_cast<int>(threadIdx.x) / 32);
    const int place = own < args_.places ? own : args_.places - 1;
    unit_ += static_cast<int>(blockDim.x) / 128;
    const LinearPart& part = part_of(args_, place);
    const int64_t run = static_cast<int64_t>(place - part.first_place) * args_.segments + share_.segment;
    left_ = args_.segment_tiles * Operand::kBytes;
    from_ = part.tiles + run * left_;
  }
  __device__ void fetch(int slot) {
    if (left_ == 0) return;
    if (lane_index() == 0) {
      const int bytes = left_ < kStageBytes ? left_ : kStageBytes;
      cuda::ptx::mbarrier_arrive_expect(full_ + slot, bytes);
      cuda::ptx::bulk_load(stages_ + slot * kStageBytes, from_, bytes, full_ + slot);
    }
    from_ += kStageBytes;
    left_ -= kStageBytes;
    if (left_ <= 0) {
      left_ = 0;
      begin_unit();
    }
  }

  std::byte* stages_;
  uint64_t* full_;
  int stage_count_;
  const MultiplyArgs& args_;
  const ResidentShare& share_;
  const std::byte* from_ = nullptr;
  int unit_;      // the next to be fetched
  int left_ = 0;  // bytes to be fetched of the one before
  int slot_ = 0;
  uint32_t phase_ = 0;
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
