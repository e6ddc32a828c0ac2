// What passes through shared memory in the kernel of linear_team_cuda.cuh, and how it gets there.
#pragma once

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

template <class Operand, int kRows>
struct TeamShape {
  // Few rows are multiplied by warps that do not wait for each other, with mma; more by groups of four, with wgmma.
  static constexpr bool kWarps = kRows <= 16;

  static constexpr int kStageTiles = Operand::kBytes < 1024 ? 4 : 2;
  static constexpr int kStageBytes = kStageTiles * Operand::kBytes;  // of a strip
  static constexpr int kXTiles = kWarps ? kStageTiles : 1;           // of a stage of x
  static constexpr int kXTileBytes = kRows * 128, kXBytes = kXTiles * kXTileBytes;
  static constexpr int kEights = kRows / 8;  // of rows: sums travel so
  static constexpr int kBarrierBytes = 1024;
};

// What a block does: a segment of some strips. The blocks of a team have all segments of the same strips, and their
// ranks are the segments.
struct TeamItem {
  int first, strips;  // places
  int segment;

  __device__ explicit TeamItem(const MultiplyArgs& args)
      : first(static_cast<int>(blockIdx.x) / args.splits * args.block_strips),
        strips(end_of_strips(args, first, args.block_strips) - first),
        segment(static_cast<int>(blockIdx.x) % args.splits) {}
};

// The block's shared memory: barriers, stages of x, a ring of weights for each strip, sums.
template <class Operand, int kRows>
struct TeamStages {
  using Shape = TeamShape<Operand, kRows>;
  static constexpr int kXAt = Shape::kBarrierBytes;

  std::byte* memory;
  int strips, weight_stages, x_stages;  // stages of x: a power of two
  int weights_at, sums_at;

  __device__ TeamStages(std::byte* shared, const MultiplyArgs& args)
      : memory(shared),
        strips(args.block_strips),
        weight_stages(args.ring_stages),
        x_stages(args.x_stages),
        weights_at(kXAt + x_stages * Shape::kXBytes),
        sums_at(weights_at + strips * weight_stages * Shape::kStageBytes) {}

  __device__ uint64_t* barriers() const { return reinterpret_cast<uint64_t*>(memory); }
  __device__ uint64_t* x_full(int slot) const { return barriers() + slot; }
  __device__ uint64_t* x_empty(int slot) const { return barriers() + 16 + slot; }
  __device__ uint64_t* sums_full() const { return barriers() + 32; }
  __device__ uint64_t* weights_full(int strip, int slot) const {
    return barriers() + 33 + strip * weight_stages + slot;
  }
  __device__ std::byte* x(int slot) const { return memory + kXAt + slot * Shape::kXBytes; }
  __device__ std::byte* weights(int strip) const {
    return memory + weights_at + strip * weight_stages * Shape::kStageBytes;
  }
  // Where sums arrive that this block adds up: [eight rows of a strip][segment], a lane's four.
  __device__ std::byte* sums() const { return memory + sums_at; }

  // A warp's share: initialising a barrier takes a while. Those of its weights are its own.
  __device__ void init(int warp, int sum_bytes) const {
    if (lane_index() == 0) {
#pragma unroll 1
      for (int i = 0; i < weight_stages; ++i) cuda::ptx::mbarrier_init(weights_full(warp, i), 1);
#pragma unroll 1
      for (int i = warp; i < x_stages; i += strips) {
        cuda::ptx::mbarrier_init(x_full(i), 1);
        cuda::ptx::mbarrier_init(x_empty(i), strips);
      }
      if (warp == 0) cuda::ptx::mbarrier_init(sums_full(), 1);
      cuda::ptx::mbarrier_fence_init();
      if (warp == 0) cuda::ptx::mbarrier_arrive_expect(sums_full(), sum_bytes);
    }
    __syncwarp();
  }
};

// A warp's way through the tiles of its strip, which it brings into a ring of its own, and of x, which the block's
// warps bring in turns.
template <class Operand, int kRows>
class TeamReader {
 public:
  using Stages = TeamStages<Operand, kRows>;
  using Shape = TeamShape<Operand, kRows>;

  // Requests weights as far ahead as there is room, even before the kernel in front has ended.
  __device__ TeamReader(const MultiplyArgs& args, const WideX& x_maps, const TeamItem& item, const Stages& stages)
      : stages_(stages),
        map_(x_maps.of_part + part_index(args, item.first)),
        warp_(static_cast<int>(threadIdx.x) / 32),
        tiles_(args.segment_tiles),
        first_tile_(item.segment * args.segment_tiles),
        recycle_(tiles_ > stages.x_stages * Shape::kXTiles || tiles_ > stages.weight_stages * Shape::kStageTiles),
        x_turn_(warp_),
        weights_(stages.weights(warp_)),
        weights_full_(stages.weights_full(warp_, 0)) {
    if (threadIdx.x == 0) cuda::ptx::prefetch_tensor_map(map_);
    if (warp_ >= item.strips) return;
    const int place = item.first + warp_;
    const LinearPart& part = part_of(args, place);
    const int64_t strip_tiles = static_cast<int64_t>(args.segments) * args.segment_tiles;
    weights_from_ = part.tiles + ((place - part.first_place) * strip_tiles + first_tile_) * Operand::kBytes;
#pragma unroll 1
    for (int i = 0; i < stages.weight_stages; ++i) bring_weights(i, i);
  }
  // When the kernel in front has ended and the block's barriers are there.
  __device__ void bring_first_x() const {
#pragma unroll 1
    for (int i = warp_; i < stages_.x_stages && i < x_count(); i += stages_.strips) bring_x(i, i);
  }

  __device__ const Stages& stages() const { return stages_; }
  __device__ bool done() const { return tile_ == tiles_; }
  __device__ int left() const { return tiles_ - tile_; }
  __device__ const std::byte* tile_weights() const { return weights_; }
  __device__ int x_slot() const { return tile_ / Shape::kXTiles & (stages_.x_stages - 1); }

  // The weights of the next tile.
  __device__ Operand weights() const {
    if (in_stage_ == 0 && weights_from_ != nullptr) cuda::ptx::mbarrier_wait(weights_full_, weights_phase_);
    return Operand(weights_);
  }
  // And its x.
  __device__ void wait_x() const {
    cuda::ptx::mbarrier_wait(stages_.x_full(x_slot()), x_phase(tile_ / Shape::kXTiles));
  }
  // `count` tiles on, of one stage of weights.
  __device__ void advance(int count = 1) {
    tile_ += count;
    weights_ += count * Operand::kBytes;
    if ((in_stage_ += count) < Shape::kStageTiles) return;
    in_stage_ = 0;
    ++weights_full_;
    if (++stage_ < stages_.weight_stages) return;
    stage_ = 0;
    weights_phase_ ^= 1;
    weights_ = stages_.weights(warp_);
    weights_full_ = stages_.weights_full(warp_, 0);
  }
  // The first stage of x that has not been released is not needed any more, nor are the weights with it. The stage that
  // others may still need a while, the one before, is waited for.
  __device__ void release() {
    if (!recycle_) return;
    __syncwarp();
    if (lane_index() == 0) cuda::ptx::mbarrier_arrive(stages_.x_empty(released_ & (stages_.x_stages - 1)));
    constexpr int kOfWeights = Shape::kStageTiles / Shape::kXTiles;
    if (released_ % kOfWeights == kOfWeights - 1 && weights_from_ != nullptr) {
      bring_weights(released_ / kOfWeights + stages_.weight_stages, released_slot_);
      if (++released_slot_ == stages_.weight_stages) released_slot_ = 0;
    }
    if (released_ == x_turn_ + 1) {
      const int next = x_turn_ + stages_.x_stages, slot = x_turn_ & (stages_.x_stages - 1);
      if (next < x_count()) {
        cuda::ptx::mbarrier_wait(stages_.x_empty(slot), x_phase(x_turn_));
        bring_x(next, slot);
      }
      x_turn_ += stages_.strips;
    }
    ++released_;
  }

 private:
  __device__ int x_count() const { return (tiles_ + Shape::kXTiles - 1) / Shape::kXTiles; }
  __device__ int x_phase(int index) const { return (index & stages_.x_stages) != 0 ? 1 : 0; }

  // racecheck stages: what lies in a stage is written after its readers have arrived, and read after it has.
  __device__ void bring_weights(int stage, int slot) const {
    const int first = stage * Shape::kStageTiles, left = tiles_ - first;
    if (left <= 0 || lane_index() != 0) return;
    const int bytes = (left < Shape::kStageTiles ? left : Shape::kStageTiles) * Operand::kBytes;
    uint64_t* full = stages_.weights_full(warp_, slot);
    cuda::ptx::mbarrier_arrive_expect(full, bytes);
    cuda::ptx::bulk_load(stages_.weights(warp_) + slot * Shape::kStageBytes, weights_from_ + first * Operand::kBytes,
                         bytes, full);
  }
  __device__ void bring_x(int index, int slot) const {
    if (lane_index() != 0) return;
    const int first = index * Shape::kXTiles, left = tiles_ - first;
    const int count = left < Shape::kXTiles ? left : Shape::kXTiles;
    uint64_t* full = stages_.x_full(slot);
    cuda::ptx::mbarrier_arrive_expect(full, count * Shape::kXTileBytes);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      cuda::ptx::tensor_load(stages_.x(slot) + i * Shape::kXTileBytes, map_,
                             (first_tile_ + first + i) * static_cast<int>(kTileIns), 0, full);
    }
  }
  const Stages& stages_;
  const cuda::TensorMap* map_;
  const std::byte* weights_from_ = nullptr;  // of the strip, if there is one
  int warp_, tiles_, first_tile_;
  bool recycle_;  // there are more tiles than places
  int x_turn_;    // a stage of x whose place the warp fills again
  int tile_ = 0, released_ = 0, released_slot_ = 0;
  int in_stage_ = 0, stage_ = 0;  // of weights
  int weights_phase_ = 0;
  const std::byte* weights_;
  uint64_t* weights_full_;
};

}  // namespace weir
