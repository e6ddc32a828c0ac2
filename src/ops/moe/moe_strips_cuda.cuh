// Strips of experts with few rows (moe_few_cuda.cuh): which are a block's and a warp's, and how their weights come.
#pragma once

#include "ops/linear/linear_tile_cuda.cuh"
#include "ops/moe/moe_cuda.cuh"

namespace weir {

// Divides without the many instructions of a division, with which every warp would begin: exact for dividends below
// 2^24, and below 2^40 / by.
struct Divisor {
  int32_t by = 1;
  uint64_t reciprocal = 0;  // 2^40 / by, rounded up

  Divisor() = default;
  explicit Divisor(int32_t divisor)
      : by(divisor),
        reciprocal(((uint64_t{1} << 40) + static_cast<uint64_t>(divisor) - 1) / static_cast<uint64_t>(divisor)) {}
  __device__ int32_t quotient(int32_t n) const {
    return static_cast<int32_t>(static_cast<uint64_t>(n) * reciprocal >> 40);
  }
};

// What a launch says besides the product.
struct FewLaunch {
  int32_t row_slots = 0;  // rows in shared memory
  Divisor strips;         // of an expert
  Divisor blocks;
  Divisor parts;  // of a strip: 1, or its segments
  int32_t part_segments = 0;
  int32_t stages = 0, stage_tiles = 0;  // of a warp's ring; a stage's tiles come together
};
// Of a warp, where strips have parts: sums of two strips.
inline constexpr int64_t kPartBytes = 2 * 32 * sizeof(float4);

// A warp's ring: stages, whose tiles come together. One column of rows is soon multiplied, so that stages count: those
// of small tiles are longer then.
template <class Operand, int kMostColumns>
inline constexpr bool kLongStages = kMostColumns == 1 && Operand::kBytes <= 576;
template <class Operand, int kMostColumns>
inline constexpr int kMostStageTiles = kLongStages<Operand, kMostColumns> ? 9 : kStageTiles<Operand>;
template <class Operand, int kMostColumns>
inline constexpr int kRingTiles = kLongStages<Operand, kMostColumns> ? 18 : 4 * kStageTiles<Operand>;
WEIR_HD inline int64_t few_ring_bytes(int stages, int stage_bytes) {
  return (stages * (stage_bytes + 8) + 127) / 128 * 128;
}

// The strips of a block, and a warp's of them.
struct StripRange {
  int32_t first, end;            // items: tile * strips + strip
  int32_t first_tile, end_tile;  // where there are items
  int32_t strips;                // of a tile
  int32_t step;                  // from one of a warp's to the next
  int32_t warp_first, warp_tile;
  int32_t group, part, parts;  // the warp's of each strip; of the warps that share one

  __device__ StripRange(const FewLaunch& launch, int32_t tiles, int warps)
      : strips(launch.strips.by), parts(launch.parts.by) {
    const int32_t block = static_cast<int32_t>(blockIdx.x), items = tiles * strips;
    const int32_t each = launch.blocks.quotient(items), more = items - each * launch.blocks.by;
    first = each * block + (block < more ? block : more);  // so many blocks have one more
    end = first + each + (block < more ? 1 : 0);
    first_tile = launch.strips.quotient(first);
    end_tile = launch.strips.quotient(end - 1) + 1;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    group = launch.parts.quotient(warp);
    step = launch.parts.quotient(warps);
    warp_first = group < step ? first + group : end;
    warp_tile = launch.strips.quotient(warp_first);
    part = warp - group * parts;
  }
};

// A warp's way through its strips.
struct StripCursor {
  int32_t item, tile, strip;

  __device__ explicit StripCursor(const StripRange& range)
      : item(range.warp_first), tile(range.warp_tile), strip(item - tile * range.strips) {}
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
  __device__ StripRing(std::byte* shared, const ExpertProduct& args, const FewLaunch& launch, const PairTile* tiles,
                       const StripRange& range)
      : stages_(shared),
        full_(reinterpret_cast<uint64_t*>(shared + launch.stages * launch.stage_tiles * Operand::kBytes)),
        experts_(args.experts),
        part_segments_(launch.part_segments),
        tiles_(tiles),
        range_(range),
        next_(range),
        stage_count_(launch.stages),
        stage_tiles_(launch.stage_tiles) {
    if (lane_index() == 0) {
#pragma unroll 1
      for (int i = 0; i < stage_count_; ++i) cuda::ptx::mbarrier_init(full_ + i, 1);
      cuda::ptx::mbarrier_fence_init();
    }
    __syncwarp();
    find();
#pragma unroll 1
    for (int i = 0; i < stage_count_; ++i) fetch(i);
  }

  __device__ const std::byte* acquire() {
    cuda::ptx::mbarrier_wait(full_ + slot_, phase_);
    return stages_ + slot_ * stage_tiles_ * Operand::kBytes;
  }
  __device__ void release() {
    __syncwarp();  // racecheck ring: a stage is fetched into when all lanes have read it; the tool misses that
    fetch(slot_);
    if (++slot_ == stage_count_) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  // The weights at next_.
  __device__ void find() {
    if (next_.item >= range_.end) return;
    const int64_t strip = int64_t{tiles_[next_.tile].expert} * range_.strips + next_.strip;
    const int64_t first = (strip * range_.parts + range_.part) * part_segments_;
    from_ = experts_.tiles + first * experts_.segment_tiles * Operand::kBytes;
    segments_ = part_segments_;
    left_ = experts_.segment_tiles;
  }
  __device__ void fetch(int slot) {
    if (next_.item >= range_.end) return;
    const int tiles = left_ < stage_tiles_ ? left_ : stage_tiles_;
    const int bytes = tiles * Operand::kBytes;
    if (lane_index() == 0) {
      cuda::ptx::mbarrier_arrive_expect(full_ + slot, bytes);
      cuda::ptx::bulk_load(stages_ + slot * stage_tiles_ * Operand::kBytes, from_, bytes, full_ + slot);
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
  int32_t part_segments_;
  const PairTile* tiles_;
  StripRange range_;
  StripCursor next_;  // to fetch
  int stage_count_, stage_tiles_;
  const std::byte* from_ = nullptr;
  int segments_ = 0, left_ = 0;  // of it
  int slot_ = 0;
  uint32_t phase_ = 0;
};

}  // namespace weir
