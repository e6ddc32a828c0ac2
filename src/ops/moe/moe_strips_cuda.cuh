// Strips of experts with few rows (moe_few_cuda.cuh): which are a block's and a warp's, and how their weights come.
#pragma once

#include "ops/linear/linear_tile_cuda.cuh"
#include "ops/moe/moe_cuda.cuh"

namespace weir {

// What a launch says besides the product.
struct FewLaunch {
  int32_t row_slots = 0;  // rows in shared memory
  int32_t parts = 1;      // of a strip: 1, or its segments
};
// Of a warp, where strips have parts: sums of two strips.
inline constexpr int64_t kPartBytes = 2 * 32 * sizeof(float4);

inline constexpr int kFewStages = 4;
template <class Operand>
inline constexpr int kFewRingBytes = (kFewStages * (kStageBytes<Operand> + 8) + 127) / 128 * 128;

// The strips of a block, and a warp's of them.
struct StripRange {
  int32_t first, end;  // items: tile * strips + strip
  int32_t strips;      // of a tile
  int32_t step;        // from one of a warp's to the next
  int32_t warp_first;
  int32_t part, parts;  // the warp's of each strip

  __device__ StripRange(const ExpertProduct& args, const FewLaunch& launch, int32_t tiles, int warps)
      : strips(args.experts.strips), parts(launch.parts) {
    const int32_t block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
    const int32_t each = tiles * strips / blocks, more = tiles * strips % blocks;  // so many blocks have one more
    first = each * block + (block < more ? block : more);
    end = first + each + (block < more ? 1 : 0);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    step = warps / parts;
    warp_first = warp / parts < step ? first + warp / parts : end;
    part = warp % parts;
  }
};

// A warp's way through its strips.
struct StripCursor {
  int32_t item, tile, strip;

  __device__ explicit StripCursor(const StripRange& range)
      : item(range.warp_first), tile(item / range.strips), strip(item % range.strips) {}
  __device__ void advance(const StripRange& range) {
    item += range.step;
    strip += range.step;
    while (strip >= range.strips) {
      strip -= range.strips;
      ++tile;
    }
  }
};

// A warp's ring of weights.
template <class Operand>
class StripRing {
 public:
  __device__ StripRing(std::byte* shared, const ExpertProduct& args, const PairTile* tiles, const StripRange& range)
      : stages_(shared),
        full_(reinterpret_cast<uint64_t*>(shared + kFewStages * kStageBytes<Operand>)),
        experts_(args.experts),
        tiles_(tiles),
        range_(range),
        next_(range) {
    if (lane_index() == 0) {
#pragma unroll 1
      for (int i = 0; i < kFewStages; ++i) cuda::ptx::mbarrier_init(full_ + i, 1);
      cuda::ptx::mbarrier_fence_init();
    }
    __syncwarp();
    find();
#pragma unroll 1
    for (int i = 0; i < kFewStages; ++i) fetch(i);
  }

  __device__ const std::byte* acquire() {
    cuda::ptx::mbarrier_wait(full_ + slot_, phase_);
    return stages_ + slot_ * kStageBytes<Operand>;
  }
  __device__ void release() {
    __syncwarp();
    fetch(slot_);
    if (++slot_ == kFewStages) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  // The weights at next_.
  __device__ void find() {
    if (next_.item >= range_.end) return;
    const int64_t strip = int64_t{tiles_[next_.tile].expert} * range_.strips + next_.strip;
    const int64_t first = (strip * range_.parts + range_.part) * (experts_.segments / range_.parts);
    from_ = experts_.tiles + first * experts_.segment_tiles * Operand::kBytes;
    segments_ = experts_.segments / range_.parts;
    left_ = experts_.segment_tiles;
  }
  __device__ void fetch(int slot) {
    if (next_.item >= range_.end) return;
    const int tiles = left_ < kStageTiles<Operand> ? left_ : kStageTiles<Operand>;
    const int bytes = tiles * Operand::kBytes;
    if (lane_index() == 0) {
      cuda::ptx::mbarrier_arrive_expect(full_ + slot, bytes);
      cuda::ptx::bulk_load(stages_ + slot * kStageBytes<Operand>, from_, bytes, full_ + slot);
    }
    from_ += bytes;
    left_ -= tiles;
    if (left_ > 0) return;
    left_ = experts_.segment_tiles;
    if (--segments_ > 0) return;
    next_.advance(range_);
    find();
  }

  std::byte* stages_;
  uint64_t* full_;
  const ExpertTiles& experts_;
  const PairTile* tiles_;
  StripRange range_;
  StripCursor next_;  // to fetch
  const std::byte* from_ = nullptr;
  int segments_ = 0, left_ = 0;  // of it
  int slot_ = 0;
  uint32_t phase_ = 0;
};

}  // namespace weir
