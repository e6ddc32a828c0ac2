// What the kernel of linear_resident_cuda.cuh has in shared memory, and its products.
#pragma once

#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"
#include "ops/linear/linear_wide_store_cuda.cuh"

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
  __device__ int place(int unit, int warp) const { return first + unit * 4 + warp % 4; }
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

// Where sums of segments meet: each block that has a strip leaves those of its segment in memory, and adds all segments
// of its share of the rows. The blocks run at the same time, a strip's warps wait for each other.
template <int kRows>
struct ResidentMeeting {
  static constexpr int kEights = kRows / 8;
  static constexpr int kTogether = 2;  // eights of rows

  const MultiplyArgs& args;
  int segment;

  __device__ WideMeeting<kRows> at(int place) const { return WideMeeting<kRows>(args, {}, place); }
  __device__ void arrive(int place) const {
    __syncwarp();
    if (lane_index() == 0) cuda::ptx::add_ordered(at(place).counter, 1);
  }
  // The last of those who have seen all arrive leaves the counter zero.
  __device__ void await_all(uint32_t* counter) const {
    const auto all = static_cast<uint32_t>(args.segments);
    if (lane_index() == 0) {
      while (cuda::ptx::load_acquire(counter) < all) {}
      if (atomicAdd(counter, 1u) == 2 * all - 1) *counter = 0;
    }
    __syncwarp();
  }
  __device__ void gather(int place, int rows) const {
    const WideMeeting<kRows> meeting = at(place);
    await_all(meeting.counter);
    const LinearPart& part = part_of(args, place);
    const int lane = lane_index(), o = (place - part.first_place) * static_cast<int>(kTileOuts) + lane / 4;
    float bias[2] = {};
    for (int half = 0; half < 2; ++half) {
      if (part.bias != nullptr && o + 8 * half < part.out) bias[half] = part.bias[o + 8 * half];
    }
    const int end = kEights * (segment + 1) / args.segments;
#pragma unroll 1
    for (int i = kEights * segment / args.segments; i < end; i += kTogether) {
      float4 total[kTogether];
      total_of(meeting.sums + i * 32, end - i, total);
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        if (i + t >= end) break;
        const float sums[4] = {total[t].x, total[t].y, total[t].z, total[t].w};
        for (int j = 0; j < 4; ++j) {
          const int row = 8 * (i + t) + lane % 4 * 2 + j % 2, own = o + j / 2 * 8;
          if (row >= rows || own >= part.out) continue;
          store_output(part, row, own, part.bias != nullptr ? sums[j] + bias[j / 2] : sums[j]);
        }
      }
    }
  }
  // Segments ascending, of the first `count` of the eights of rows; many are on their way at once.
  __device__ void total_of(const float4* first, int count, float4 (&total)[kTogether]) const {
    constexpr int kBatch = 8;
#pragma unroll 1
    for (int s = 0; s < args.segments; s += kBatch) {
      float4 part[kBatch][kTogether];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
          if (s + b < args.segments && t < count) part[b][t] = __ldcg(first + ((s + b) * kEights + t) * 32);
        }
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        if (s == 0) total[t] = part[0][t];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (s + b == 0 || s + b >= args.segments) continue;
          const float4& more = part[b][t];
          total[t] = {total[t].x + more.x, total[t].y + more.y, total[t].z + more.z, total[t].w + more.w};
        }
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
  static constexpr int kEarlyTiles = 4;
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
    const int whole = tiles / kStage * kStage;
    int t = 0;
#pragma unroll 1
    for (int end = whole < kEarlyTiles ? whole : kEarlyTiles;; end = whole) {
#pragma unroll 1
      for (; t < end; t += kStage) {
        multiply_stage<kStage>(ring, x_is_new, t, b, turns, sums);
        b += kStage * (ResidentX<kRows>::kTileBytes / 16);
      }
      if (t <= kEarlyTiles) early();
      if (end == whole) break;
    }
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
    if (x_is_new) {
      for (int i = 0; i < kTiles; ++i) x_.wait(t + i);
      WEIR_TILE_STAMP(t);
    }
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
