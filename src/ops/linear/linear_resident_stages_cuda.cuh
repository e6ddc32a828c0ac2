// What the kernel of linear_resident_cuda.cuh has in shared memory.
#pragma once

#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

inline constexpr int kResidentTiles = kSegmentIns / kTileIns;  // of x, at most

// `groups`: of a tile, whose sums are taken.
constexpr int64_t resident_x_bytes(int64_t segment_tiles, int64_t rows, int64_t groups) {
  return (segment_tiles * (128 + groups * 4) + 4) * rows + 16 * kResidentTiles;
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
template <class Operand, int kRows>
struct ResidentX {
  static constexpr int kTileBytes = kRows * 128;
  static constexpr int kGroups = Operand::kMinima ? 4 / Operand::kGroupSteps : 0;  // of a tile, whose sums are taken

  std::byte* tiles;
  float* totals;   // sums over groups (sum), behind zeros for the one before the first
  uint64_t* full;  // of each tile
  uint64_t* summed;
  int count;

  __device__ ResidentX(const MultiplyArgs& args, std::byte* shared)
      : tiles(shared),
        totals(reinterpret_cast<float*>(shared + args.segment_tiles * kTileBytes)),
        full(reinterpret_cast<uint64_t*>(totals + (args.segment_tiles * kGroups + 1) * kRows)),
        summed(full + kResidentTiles),
        count(args.segment_tiles) {}
  // By one thread, which also brings them.
  __device__ void init() const {
    for (int t = 0; t < count; ++t) {
      cuda::ptx::mbarrier_init(full + t, 1);
      cuda::ptx::mbarrier_arrive_expect(full + t, kTileBytes);
      cuda::ptx::mbarrier_init(summed + t, 4);
    }
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ void bring(const cuda::TensorMap* map, int first_tile) const {
    for (int t = 0; t < count; ++t) {
      const int k = (first_tile + t) * static_cast<int>(kTileIns);
      cuda::ptx::tensor_load(tiles + t * kTileBytes, map, k, 0, full + t);
    }
  }
  __device__ void wait(int tile) const {
    cuda::ptx::mbarrier_wait(full + tile, 0);
    if constexpr (Operand::kMinima) cuda::ptx::mbarrier_wait(summed + tile, 0);
  }
  // Sums over groups, for minima; by all warps, each some tiles. Of a group rows 8 c + 2 i and the next lie at
  // c / 2 * 16 + i * 4 + c % 2 * 2.
  __device__ void sum() const {
    const int lane = lane_index(), warp = static_cast<int>(threadIdx.x) / 32;
    for (int t = warp; t < count; t += static_cast<int>(blockDim.x) / 32) {
      cuda::ptx::mbarrier_wait(full + t, 0);
      const uint32_t x = cuda::ptx::shared_address(tiles + t * kTileBytes) + lane % 8 * 128;
#pragma unroll 4
      for (int c = 0; c < kRows / 8; ++c) {
        uint32_t b[2][4];
        for (int pair = 0; pair < 2; ++pair) {
          cuda::ptx::load_matrix_x4(b[pair], x + c * 1024 + ((4 * pair + lane / 8) ^ lane % 8) * 16);
        }
        sum_groups<Operand>(b, totals + (t * kGroups + 1) * kRows + c / 2 * 16 + c % 2 * 2, kRows, 4);
      }
      if (lane < 4) cuda::ptx::mbarrier_arrive(summed + t);  // who have written them
    }
  }
};

// A warp's tiles, those of its units one after the other, on their way through its part of shared memory.
template <class Operand, int kTiles>
class ResidentRing {
 public:
  static constexpr int kStageTiles = kTiles;
  static constexpr int kStageBytes = kStageTiles * Operand::kBytes;

  __device__ ResidentRing(std::byte* shared, const MultiplyArgs& args, const ResidentShare& share, int warp)
      : stages_(shared),
        full_(reinterpret_cast<uint64_t*>(shared + args.ring_stages * kStageBytes)),
        stage_count_(args.ring_stages),
        args_(args),
        share_(share),
        warp_(warp),
        unit_(warp / 4) {
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
    const int own = share_.place(unit_, warp_);
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
      cuda::ptx::bulk_load(stages_ + slot * kStageBytes, from_, bytes, full_ + slot, cuda::ptx::read_once());
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
  int warp_;
  int unit_;      // the next to be fetched
  int left_ = 0;  // bytes to be fetched of the one before
  int slot_ = 0;
  uint32_t phase_ = 0;
};

}  // namespace weir
