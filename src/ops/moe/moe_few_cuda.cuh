// Products of experts with few rows: a warp multiplies whole strips, one after the other, with all rows of a tile of
// pairs (linear_tile_cuda.cuh has the numeric specification).
//
// Blocks share the strips of all tiles out evenly. Each warp has a ring of weights that runs ahead over strips and
// experts; one more warp brings the rows of the block's tiles of pairs, as many as its shared memory holds. With few
// strips a warp takes one segment of a strip, and the one with the first adds them up.
#pragma once

#include <type_traits>

#include "ops/linear/linear_tile_cuda.cuh"
#include "ops/moe/moe_cuda.cuh"
#include "ops/moe/moe_few.h"
#include "ops/moe/moe_small_plan_cuda.cuh"

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
inline constexpr int kTilesAhead = 4;  // tiles of pairs whose rows are there or on their way
// Warps that multiply.
template <int kMostColumns>
inline constexpr int kFewWarps = kMostColumns == 1 ? 8 : 11;
template <int kMostColumns>
inline constexpr int kFewBlocks = kMostColumns == 1 ? 2 : 1;  // of a multiprocessor

// Bytes of a row in shared memory: eight rows at the same k lie in different banks.
WEIR_HD inline int row_stride(int64_t width) { return static_cast<int>(width) * 2 + 16; }

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

// The rows of a block's tiles of pairs in shared memory. Tile n of the block takes the next slots.
struct RowStore {
  std::byte* rows;
  uint64_t* full;   // [kTilesAhead]
  uint64_t* empty;  // [kTilesAhead]
  int32_t slots;
  int32_t stride;

  __device__ void init(int readers) const {
    for (int i = 0; i < kTilesAhead; ++i) {
      cuda::ptx::mbarrier_init(full + i, 1);
      cuda::ptx::mbarrier_init(empty + i, readers);
    }
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ std::byte* slot(int32_t first, int32_t row) const {
    const int32_t at = first + row;
    return rows + (at < slots ? at : at - slots) * stride;
  }
  __device__ int32_t after(int32_t first, int32_t count) const {
    const int32_t at = first + count;
    return at < slots ? at : at - slots;
  }
  __device__ static int parity(int n) { return n / kTilesAhead % 2; }
};

// Rows of FP32 to their slots, by some threads; each takes every `step`-th eight of a row.
__device__ inline void round_rows(const ExpertProduct& args, const PairPlan& plan, const PairTile& tile,
                                  const RowStore& store, int32_t slot, int thread, int step) {
  constexpr int kBatch = 3;
  const int eights = static_cast<int>(args.experts.width() / 8);
#pragma unroll 1
  for (int r = 0; r < tile.rows; ++r) {
    const int64_t row = plan.pairs[tile.first + r] / args.x.pairs_per_row;
    const float* x = args.x.exact + row * args.x.exact_stride;
    auto* to = reinterpret_cast<uint4*>(store.slot(slot, r));
    const int whole = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? static_cast<int>(args.x.in / 8) : 0;
#pragma unroll 1
    for (int first = thread; first < eights; first += step * kBatch) {
      float4 low[kBatch], high[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + step * i;
        if (at >= whole) continue;
        low[i] = reinterpret_cast<const float4*>(x)[2 * at];
        high[i] = reinterpret_cast<const float4*>(x)[2 * at + 1];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + step * i;
        if (at < eights) to[at] = at < whole ? pack_eight(low[i], high[i]) : round_eight(x, int64_t{at} * 8, args.x.in);
      }
    }
  }
}

// By a warp: the rows of the tiles that the block's strips belong to. Those of the first tile that have to be rounded
// are the whole block's to bring.
__device__ inline void bring_rows(const ExpertProduct& args, const PairPlan& plan, const StripRange& range,
                                  const RowStore& store) {
  const int lane = lane_index();
  const int first = range.first / range.strips, end = (range.end - 1) / range.strips + 1;
  const bool exact = args.x.exact != nullptr;
  int oldest = first, used = 0, slot = 0;
#pragma unroll 1
  for (int t = first; t < end; ++t) {
    const PairTile tile = plan.tiles[t];
    while (used + tile.rows > store.slots || t - oldest == kTilesAhead) {
      cuda::ptx::mbarrier_wait(store.empty + (oldest - first) % kTilesAhead, RowStore::parity(oldest - first));
      used -= plan.tiles[oldest++].rows;
    }
    uint64_t* full = store.full + (t - first) % kTilesAhead;
    if (exact) {
      if (t > first) round_rows(args, plan, tile, store, slot, lane, 32);
      __syncwarp();
      if (lane == 0) cuda::ptx::mbarrier_arrive(full);
    } else {
      const int64_t width = args.experts.width();
      const int bytes = static_cast<int>(width) * 2;
      if (lane == 0) cuda::ptx::mbarrier_arrive_expect(full, tile.rows * bytes);
      __syncwarp();
      if (lane < tile.rows) {
        const int64_t row = plan.pairs[tile.first + lane] / args.x.pairs_per_row;
        cuda::ptx::bulk_load(store.slot(slot, lane), args.x.rounded + row * width, bytes, full);
      }
    }
    used += tile.rows;
    slot = store.after(slot, tile.rows);
  }
}

// Before bring_rows and multiply_strips, by the whole block.
__device__ inline void bring_first_rows(const ExpertProduct& args, const PairPlan& plan, const StripRange& range,
                                        const RowStore& store) {
  if (args.x.exact == nullptr) return;
  const PairTile tile = plan.tiles[range.first / range.strips];
  round_rows(args, plan, tile, store, 0, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  __syncthreads();
}

// B fragments from rows that lie side by side, as SharedX has them. Columns without a row take another's: nobody looks
// at their sums.
template <int kColumns>
struct RowFragments {
  uint32_t at[kColumns];

  __device__ RowFragments(const RowStore& store, int32_t slot, int32_t rows, int first_byte) {
    const int lane = lane_index();
    for (int c = 0; c < kColumns; ++c) {
      const int32_t row = c * 8 + lane % 8;
      at[c] = cuda::ptx::shared_address(store.slot(slot, row < rows ? row : 0)) + first_byte + lane / 8 * 16;
    }
  }
  __device__ void load(int c, int pair, uint32_t (&b)[4]) const { cuda::ptx::load_matrix_x4(b, at[c] + pair * 64); }
  __device__ RowFragments tile(int t) const {
    RowFragments moved = *this;
    for (uint32_t& a : moved.at) a += t * 128;
    return moved;
  }
};

// A tile's fragments in registers.
struct LoadedRows {
  uint32_t fragments[2][4];

  __device__ explicit LoadedRows(const RowFragments<1>& x) {
    for (int pair = 0; pair < 2; ++pair) x.load(0, pair, fragments[pair]);
  }
  __device__ void load(int, int pair, uint32_t (&b)[4]) const {
    for (int i = 0; i < 4; ++i) b[i] = fragments[pair][i];
  }
};

// A whole stage with one column: a tile is read while the one before is multiplied.
template <class Operand>
__device__ inline void multiply_whole_stage(const std::byte* tiles, const RowFragments<1>& x, Sums<1>& sums) {
  Operand w(tiles);
  LoadedRows loaded(x);
#pragma unroll
  for (int t = 1; t < kStageTiles<Operand>; ++t) {
    const Operand next(tiles + t * Operand::kBytes);
    const LoadedRows next_loaded(x.tile(t));
    multiply_tile(w, loaded, sums);
    w = next;
    loaded = next_loaded;
  }
  multiply_tile(w, loaded, sums);
}

// The sums of a warp's part of a strip.
template <class Operand, int kColumns>
__device__ inline Sums<kColumns> multiply_part(StripRing<Operand>& ring, const ExpertTiles& experts, int segments,
                                               RowFragments<kColumns> x) {
  Sums<kColumns> total;
  total.clear();
  for (; segments > 0; --segments) {
    Sums<kColumns> sums;
    sums.clear();
    for (int count = experts.segment_tiles; count > 0; count -= kStageTiles<Operand>) {
      const std::byte* tiles = ring.acquire();
      if (kColumns == 1 && count >= kStageTiles<Operand>) {
        if constexpr (kColumns == 1) multiply_whole_stage<Operand>(tiles, x, sums);
      } else {
#pragma unroll
        for (int t = 0; t < kStageTiles<Operand>; ++t) {
          if (t >= count) break;
          multiply_tile<Operand>(tiles + t * Operand::kBytes, x.tile(t), sums);
        }
      }
      x = x.tile(kStageTiles<Operand> < count ? kStageTiles<Operand> : count);
      ring.release();
    }
    total.add(sums);
  }
  return total;
}

// Leaves a part's sums for the warp with the first part, which adds them to its own in order. True for that one.
// `left` has room for two strips of each warp.
__device__ inline bool add_parts(Sums<1>& sums, float4* left, int turn, const StripRange& range) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_index();
  float4* mine = left + (warp * 2 + turn) * 32 + lane;
  float(&v)[4] = sums.value[0];
  if (range.part > 0) *mine = {v[0], v[1], v[2], v[3]};
  cuda::ptx::named_barrier_sync(1 + warp / range.parts, range.parts * 32);
  if (range.part > 0) return false;
  for (int p = 1; p < range.parts; ++p) {
    const float4 other = mine[p * 64];
    v[0] += other.x, v[1] += other.y, v[2] += other.z, v[3] += other.w;
  }
  return true;
}

template <class Operand, int kMostColumns>
__device__ inline void multiply_strips(const ExpertProduct& args, const PairPlan& plan, const StripRange& range,
                                       std::byte* ring_memory, const RowStore& store, float4* left) {
  StripRing<Operand> ring(ring_memory, args, plan.tiles, range);
  if (args.planned_before) cuda::ptx::wait_for_previous();
  bring_first_rows(args, plan, range, store);
  const int first_tile = range.first / range.strips, end_tile = (range.end - 1) / range.strips + 1;
  const int segments = args.experts.segments / range.parts;
  const int first_byte = range.part * segments * args.experts.segment_tiles * 128;
  StripCursor at(range);
  int slot = 0, turn = 0;
  for (int t = first_tile; t < end_tile; ++t) {
    const PairTile tile = plan.tiles[t];
    const int place = (t - first_tile) % kTilesAhead;
    cuda::ptx::mbarrier_wait(store.full + place, RowStore::parity(t - first_tile));
    const auto multiply = [&]<int kColumns>(std::integral_constant<int, kColumns>) {
      const RowFragments<kColumns> x(store, slot, tile.rows, first_byte);
      for (; at.item < range.end && at.tile == t; at.advance(range), turn ^= 1) {
        Sums<kColumns> sums = multiply_part<Operand, kColumns>(ring, args.experts, segments, x);
        if constexpr (kMostColumns == 1) {
          if (range.parts > 1 && !add_parts(sums, left, turn, range)) continue;
        }
        args.out.template store<false>(tile, plan.pairs + tile.first, at.strip, sums.value);
      }
    };
    if (kMostColumns == 1 || tile.rows <= 8) {
      multiply(std::integral_constant<int, 1>{});
    } else if constexpr (kMostColumns > 1) {
      if (tile.rows <= 16) {
        multiply(std::integral_constant<int, 2>{});
      } else {
        multiply(std::integral_constant<int, 4>{});
      }
    }
    __syncwarp();
    if (lane_index() == 0) cuda::ptx::mbarrier_arrive(store.empty + place);
    slot = store.after(slot, tile.rows);
  }
}

template <class Operand, int kMostColumns>
__global__ void __launch_bounds__((kFewWarps<kMostColumns> + 1) * 32, kFewBlocks<kMostColumns>)
    multiply_few(const __grid_constant__ ExpertProduct args, const __grid_constant__ FewLaunch launch,
                 const StepView* step) {
  constexpr int kWarps = kFewWarps<kMostColumns>;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  __shared__ uint64_t barriers[2 * kTilesAhead];
  __shared__ SmallPlan small;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::byte* left = shared + kWarps * kFewRingBytes<Operand>;
  const RowStore store{left + (launch.parts > 1 ? kWarps * kPartBytes : 0), barriers, barriers + kTilesAhead,
                       launch.row_slots, row_stride(args.experts.width())};
  if (threadIdx.x == 0) store.init(kWarps);
  if (!args.planned_before) cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  PairPlan plan = args.plan;
  if (plan.tiles == nullptr) {
    small.make(args, step);
    plan = small.view();
  } else {
    __syncthreads();
  }
  const StripRange range(args, launch, *plan.tile_count, kWarps);
  if (range.first == range.end) return;
  if (warp < kWarps) {
    return multiply_strips<Operand, kMostColumns>(args, plan, range, shared + warp * kFewRingBytes<Operand>, store,
                                                  reinterpret_cast<float4*>(left));
  }
  if (args.planned_before) cuda::ptx::wait_for_previous();
  bring_first_rows(args, plan, range, store);
  bring_rows(args, plan, range, store);
}

template <TileFormat kFormat>
FewKernel few_kernel_of(bool one_column) {
  using Operand = typename OperandOf<kFormat>::Type;
  const auto kernel = [&]<int kColumns>(std::integral_constant<int, kColumns>) -> FewKernel {
    return {multiply_few<Operand, kColumns>, kFewWarps<kColumns>, kFewBlocks<kColumns>,
            kFewWarps<kColumns> * kFewRingBytes<Operand>};
  };
  return one_column ? kernel(std::integral_constant<int, 1>{}) : kernel(std::integral_constant<int, 4>{});
}

}  // namespace weir
