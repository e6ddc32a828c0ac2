// Attention over latents, keys of 576 whose first 512 elements are the values, by wgmma; numeric specification in
// attention.h. A block has four warpgroups, which hand tiles of 64 positions on to each other:
//   one copies tiles from the pages into two stages of shared memory;
//   one multiplies its 64 queries (rows of a span times heads) by a tile's keys and makes weights of the scores, which
//   take the place of the keys' last 64 elements in the stage;
//   two multiply the weights by the tile's values, each half of the dimensions, and merge pieces. They give a stage
//   back page by page, so that the next copies begin early.
#pragma once

#include "ops/attention/attention_softmax_cuda.cuh"
#include "ops/attention/attention_work_cuda.cuh"

namespace weir::latent {

namespace ptx = cuda::ptx;

inline constexpr int kKeyDim = 576, kValueDim = 512, kQueries = 64, kStages = 2;
inline constexpr int kGroup = 128;  // threads of a warpgroup
inline constexpr int kThreads = 4 * kGroup;
inline constexpr int kHalf = kValueDim / 2;  // dimensions of a warpgroup

using mma::ColumnsOf64;
inline constexpr int kTileBytes = kKeyTile * kKeyDim * 2;  // of keys, and of queries
inline constexpr int kPageRows = static_cast<int>(kPagePositions), kTilePages = kKeyTile / kPageRows;

// Where weights lie in a stage: for each page, which is a step of wgmma, tiles of 8 x 8 without swizzle.
inline constexpr int kWeightsAt = kValueDim / 64 * ColumnsOf64::kBytes;
inline constexpr int kStepBytes = kQueries * kPageRows * 2;
static_assert(kStepBytes == kPageRows * 128);  // they are given back with their page

// Behind queries and stages in shared memory.
struct Exchange {
  // For each query, from the warpgroup that makes weights, with them.
  struct Scales {
    float scale[kQueries];                // what acc is multiplied by before a tile is added
    float keep[kQueries], add[kQueries];  // at a piece's end: merged = merged * keep + acc * add
    float out_scale[kQueries];            // at the end of all pieces: out = merged * out_scale
  } scales[kStages];
  uint64_t full[kStages], weights_full[kStages];  // a tile is there, its weights are
  uint64_t empty[kStages][kTilePages];            // a page has been used
  WorkRing ring;
  AttentionPlan plan;
};
inline constexpr int kExchangeAt = kTileBytes * (1 + kStages);
inline constexpr int kSharedBytes = kExchangeAt + static_cast<int>(sizeof(Exchange));

__device__ __forceinline__ uint64_t k_major(uint32_t address) {
  return ptx::wgmma_descriptor(address, 16, 1024, ptx::Swizzle::k128);
}

// --- copies ---------------------------------------------------------------------------------------------------------

// Counts tiles, over all units: which stage, and which of its uses.
struct Turn {
  int count = 0;

  __device__ int stage() const { return count % kStages; }
  __device__ int parity() const { return count / kStages & 1; }
  __device__ void next() { ++count; }
};

// Copies the tiles of units whose rows lie in pages as BF16.
class PageCopier {
 public:
  __device__ PageCopier(const mma::TileSource& keys, const AttentionWork& unit)
      : rows_(keys.rows), first_(unit.first), last_(unit.last) {
    row_ = static_cast<int>(threadIdx.x) / 8;
    from_ = row_ * rows_.row_bytes + threadIdx.x % 8 * 16;
    to_ = mma::chunk_offset(row_, threadIdx.x % 8, 128);
    look_up(unit.first_tile());
  }

  __device__ void copy(int tile, uint32_t stage, uint64_t* empty, int parity) {
    const uint32_t pages = pages_;
    look_up(tile + kKeyTile);
#pragma unroll 1
    for (int p = 0; p < kTilePages; ++p) {
      const int position = tile + p * kPageRows + row_;
      const bool live = position >= first_ && position <= last_;
      const std::byte* from = rows_.base + __shfl_sync(cuda::kAllLanes, pages, p) * rows_.block_bytes + from_;
      if (!live) from = rows_.base;  // a copy that isn't live reads nothing, but its address must be one
      const uint32_t to = stage + p * (kPageRows * 128) + to_;
      ptx::mbarrier_wait(empty + p, parity);
#pragma unroll
      for (int column = 0; column < kKeyDim / 64; ++column) {
        ptx::copy_async16(to + column * ColumnsOf64::kBytes, from + column * 128, live);
      }
    }
  }

 private:
  // A lane for each page, a tile ahead.
  __device__ void look_up(int tile) {
    const int position = tile + static_cast<int>(threadIdx.x) % kTilePages * kPageRows;
    const bool any = position + kPageRows > first_ && position <= last_;
    pages_ = any ? static_cast<uint32_t>(rows_.pages[position / kPageRows]) : 0;
  }

  const PagedRows rows_;
  int first_, last_, row_;
  int64_t from_;
  uint32_t to_, pages_;
};

__device__ __forceinline__ void copy_tiles(const MmaAttention& a, const StepView& step, const AttentionWork& unit,
                                           std::byte* stages, Exchange& exchange, Turn& turn) {
  const SpanView& span = span_of(step, a.selected, unit.entry);
  const mma::TileSource keys(paged_rows(step, span, a.args.key, a.selected.of(unit.entry)), a.args.dtype, 0, kKeyDim,
                             kKeyDim);
  if (keys.direct && keys.rows.selected == nullptr) {
    PageCopier copier(keys, unit);
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      copier.copy(tile, ptx::shared_address(stages) + turn.stage() * kTileBytes, exchange.empty[turn.stage()],
                  turn.parity() ^ 1);
      ptx::arrive_after_copies(&exchange.full[turn.stage()]);
    }
    return;
  }
#pragma unroll 1
  for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
    for (uint64_t& empty : exchange.empty[turn.stage()]) ptx::mbarrier_wait(&empty, turn.parity() ^ 1);
    mma::load_tile<kKeyDim, kGroup, ColumnsOf64>(keys, tile, unit.first, unit.last, stages + turn.stage() * kTileBytes,
                                                 threadIdx.x);
    if (keys.direct) {
      ptx::arrive_after_copies(&exchange.full[turn.stage()]);
    } else {
      ptx::mbarrier_arrive(&exchange.full[turn.stage()]);
    }
  }
}

// --- weights --------------------------------------------------------------------------------------------------------

class Weigher {
 public:
  __device__ Weigher(const MmaAttention& a, std::byte* shared, Exchange& exchange)
      : a_(a), queries_(ptx::shared_address(shared)), to_(exchange) {}

  __device__ void run(const AttentionWork& unit, float* slot, Turn& turn) {
    first_query_ = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    softmax_.start_unit(a_, unit, first_query_);
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      if (unit.starts_piece(tile)) softmax_.start_piece();
      add_tile(unit, tile, slot, turn);
    }
  }

 private:
  __device__ void add_tile(const AttentionWork& unit, int tile, float* slot, const Turn& turn) {
    float scores[kKeyTile / 8][4];
    multiply(turn, scores);
    softmax_.mask(tile, scores);
    float scale[2];
    uint32_t weights[kKeyTile / 16][4];
    softmax_.weigh(scores, a_.scale2, weights, scale);
    // The keys' last elements have been used by the other warps too.
    ptx::named_barrier_sync(3, kGroup);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t to = queries_ + kTileBytes * (1 + turn.stage()) + kWeightsAt + warp * 512 + lane / 8 % 2 * 256 +
                        lane / 16 * 128 + lane % 8 * 16;
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) ptx::store_matrix_x4(to + k * kStepBytes, weights[k]);
    Exchange::Scales& scales = to_.scales[turn.stage()];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = first_query_ + 8 * h;
      if (lane % 4 == 0) scales.scale[n] = scale[h];
      if (unit.ends_piece(tile)) end_piece(unit, tile, h, n, slot, scales);
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&to_.weights_full[turn.stage()]);
  }

  __device__ void multiply(const Turn& turn, float (&scores)[kKeyTile / 8][4]) {
    ptx::mbarrier_wait(&to_.full[turn.stage()], turn.parity());
    ptx::fence_async_shared();
    const uint32_t keys = queries_ + kTileBytes * (1 + turn.stage());
    ptx::wgmma_fence();
#pragma unroll 1
    for (int column = 0; column < kKeyDim / 64; ++column) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t at = column * ColumnsOf64::kBytes + k * 32;
        ptx::wgmma_bf16_shared<kKeyTile>(scores[0], k_major(queries_ + at), k_major(keys + at), column + k > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin<kKeyTile / 2>(scores[0]);
  }

  __device__ void end_piece(const AttentionWork& unit, int tile, int h, int n, float* slot,
                            Exchange::Scales& scales) {
    const mma::Merge merge = softmax_.end_piece(h, unit.in_first_piece(tile));
    if (threadIdx.x % 4 != 0) return;
    scales.keep[n] = merge.keep;
    scales.add[n] = merge.add;
    if (!unit.is_last(tile) || n >= unit.count) return;
    mma::MaxSum& all = softmax_.merged[h];
    if (unit.whole()) {
      scales.out_scale[n] = mma::out_scale(all, a_.args.sinks, unit.first_head + n % unit.heads);
    } else {
      *reinterpret_cast<float2*>(slot + kQueries * kValueDim + n * 2) = {all.m, all.l};
    }
  }

  const MmaAttention& a_;
  uint32_t queries_;
  Exchange& to_;
  int first_query_ = 0;
  mma::Softmax softmax_;
};

// --- values ---------------------------------------------------------------------------------------------------------

class Adder {
 public:
  // half: which dimensions.
  __device__ Adder(const MmaAttention& a, int half, std::byte* shared, Exchange& exchange)
      : a_(a), half_(half), stages_(ptx::shared_address(shared) + kTileBytes), from_(exchange) {}

  __device__ void run(const AttentionWork& unit, float* slot, Turn& turn) {
    first_query_ = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      ptx::mbarrier_wait(&from_.weights_full[turn.stage()], turn.parity());
      const Exchange::Scales& scales = from_.scales[turn.stage()];
      rescale(unit.starts_piece(tile), scales);
      const bool ends_piece = unit.ends_piece(tile);
      float keep[2], add[2], out_scale[2];
      if (ends_piece) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int n = first_query_ + 8 * h;
          keep[h] = scales.keep[n], add[h] = scales.add[n], out_scale[h] = scales.out_scale[n];
        }
      }
      multiply(turn);
      if (!ends_piece) continue;
      const bool out = unit.is_last(tile) && unit.whole();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int n = first_query_ + 8 * h;
        if (n >= unit.count) continue;
        float* const merged = slot + n * kValueDim;
        if (!unit.in_first_piece(tile)) merge(h, merged, keep[h], add[h]);
        write(h, out ? mma::out_of(a_, unit, n) : merged, out ? out_scale[h] : 1.f, !out || a_.out_pairs);
      }
    }
  }

 private:
  __device__ void rescale(bool starts_piece, const Exchange::Scales& scales) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = starts_piece ? 0.f : scales.scale[first_query_ + 8 * h];
      if (__all_sync(cuda::kAllLanes, scale == 1.f)) continue;
#pragma unroll
      for (int j = 0; j < kHalf / 8; ++j) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) acc_[4 * j + i] = starts_piece ? 0.f : acc_[4 * j + i] * scale;
      }
    }
  }

  __device__ void multiply(const Turn& turn) {
    ptx::mbarrier_wait(&from_.full[turn.stage()], turn.parity());
    ptx::fence_async_shared();
    const uint32_t stage = stages_ + turn.stage() * kTileBytes, weights = stage + kWeightsAt;
    const uint32_t values = stage + half_ * (kHalf / 64) * ColumnsOf64::kBytes;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {  // ptxas refuses 256 dimensions at once in so large a block
        const uint32_t at = values + part * (kHalf / 2 / 64) * ColumnsOf64::kBytes + k * kPageRows * 128;
        ptx::wgmma_bf16_shared<kHalf / 2, ptx::Major::kK, ptx::Major::kMN>(
            acc_ + part * (kHalf / 4),
            ptx::wgmma_descriptor(weights + k * kStepBytes, 128, 256, ptx::Swizzle::kNone),
            ptx::wgmma_descriptor(at, ColumnsOf64::kBytes, 1024, ptx::Swizzle::k128));
      }
      ptx::wgmma_commit();
    }
    give_back<3>(turn, 0);
    give_back<2>(turn, 1);
    give_back<1>(turn, 2);
    give_back<0>(turn, 3);
    ptx::pin<kHalf / 2>(acc_);
  }

  // Page p of the stage, once no more than kPending products are under way.
  template <int kPending>
  __device__ void give_back(const Turn& turn, int p) {
    ptx::wgmma_wait<kPending>();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&from_.empty[turn.stage()][p]);
  }

  __device__ int column(int j) const { return half_ * kHalf + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2; }

  // acc becomes acc merged into what is in the slot.
  __device__ void merge(int h, const float* slot, float keep, float add) {
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j) {
      const float2 before = *reinterpret_cast<const float2*>(slot + column(j));
      acc_[4 * j + 2 * h] = fmaf(before.x, keep, acc_[4 * j + 2 * h] * add);
      acc_[4 * j + 2 * h + 1] = fmaf(before.y, keep, acc_[4 * j + 2 * h + 1] * add);
    }
  }

  __device__ void write(int h, float* to, float scale, bool pairs) const {
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j) {
      mma::store_pair(to + column(j), acc_[4 * j + 2 * h] * scale, acc_[4 * j + 2 * h + 1] * scale, pairs);
    }
  }

  const MmaAttention& a_;
  int half_;
  uint32_t stages_;
  Exchange& from_;
  int first_query_ = 0;
  float acc_[kHalf / 2];
};

}  // namespace weir::latent
