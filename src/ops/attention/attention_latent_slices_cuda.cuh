// Attention over latents for steps of few rows (attention_latent_split_cuda.cu): how weights of tiles lie in memory,
// and how a block adds the tiles of a piece, for a slice of the dimensions.
#pragma once

#include "ops/attention/attention_latent_weights_cuda.cuh"

namespace weir::latent {

// Where the weights of a tile lie: fragments of each k and thread, then maxima.
struct TilePlace {
  uint4* fragments;
  float* maxima;

  __device__ TilePlace(const MmaAttention& a, int64_t tile) {
    fragments = reinterpret_cast<uint4*>(a.tile_weights + tile * kTileWeightBytes);
    maxima = reinterpret_cast<float*>(fragments + kTilePages * kGroup);
  }
};
static_assert(kTileWeightBytes == kTilePages * kGroup * 16 + kQueries * 4);

inline constexpr int kSlice = 64;  // dimensions
inline constexpr int kSlices = kValueDim / kSlice;

// A slice of a tile's values, its weights and maxima.
inline constexpr int kValueBytes = kKeyTile * kSlice * 2;
inline constexpr int kSliceStage = (kValueBytes + kTileWeightBytes + 1023) / 1024 * 1024, kSliceStages = 6;
inline constexpr int kSliceCopiers = 2, kSliceThreads = (kSliceCopiers + 1) * kGroup;  // warpgroups; threads in all

// Behind the stages.
struct SliceExchange {
  uint64_t full[kSliceStages], empty[kSliceStages];
  int32_t rows[kMostSplitEntries];  // pages of the piece; of a list of positions their rows
};

// What a block has to do: a slice of a piece of a row's tile of heads.
struct SliceWork {
  AttentionWork unit;
  int part, pieces, slice;  // of all pieces; of the unit's row
  int64_t place;            // of the weights of the first tile
};

// A warpgroup that copies every kSliceCopiers-th tile, from the one with its own index on.
class SliceCopier {
 public:
  __device__ SliceCopier(const MmaAttention& a, const StepView& step, const SliceWork& work, int index)
      : keys_(paged_rows(step, span_of(step, a.selected, work.unit.entry), a.args.key, a.selected.of(work.unit.entry)),
              a.args.dtype, 0, kKeyDim, kKeyDim),
        first_(work.unit.first),
        positions_(work.unit.last + 1 - work.unit.first),
        row_(static_cast<int>(threadIdx.x) % kGroup / 8),
        chunk_(static_cast<int>(threadIdx.x) % 8),
        element_(work.slice * kSlice + chunk_ * 8),
        tile_(index * kKeyTile),
        weights_(a.tile_weights + (work.place + index) * kTileWeightBytes) {}

  // By all threads of the block, before any copy.
  __device__ void look_up(int32_t* rows) const {
    const bool list = keys_.rows.selected != nullptr;
    const int count = list ? positions_ : (positions_ + kPageRows - 1) / kPageRows;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSliceThreads) {
      const int position = list ? keys_.rows.selected[first_ + i] : first_ + i * kPageRows;
      const auto page = static_cast<int32_t>(keys_.rows.pages[position / kPageRows]);
      rows[i] = list ? page * kPageRows + position % kPageRows : page;
    }
  }

  // Its next tile; every thread of the warpgroup arrives at `full`, one twice.
  __device__ void copy(std::byte* stage, const int32_t* rows, uint64_t* full) {
    if (threadIdx.x % kGroup == 0) {
      ptx::mbarrier_arrive_expect(full, kTileWeightBytes);
      ptx::bulk_load(stage + kValueBytes, weights_, kTileWeightBytes, full);
    }
    weights_ += kSliceCopiers * kTileWeightBytes;
#pragma unroll
    for (int p = 0; p < kTilePages; ++p) {
      const int r = p * kPageRows + row_, position = tile_ + r;
      const bool live = position < positions_;
      copy_chunk(stage, mma::chunk_offset(r, chunk_, 128), live ? row(rows, position) : keys_.rows.base, live);
    }
    tile_ += kSliceCopiers * kKeyTile;
    if (keys_.direct) {
      ptx::arrive_after_copies(full);
    } else {
      ptx::mbarrier_arrive(full);
    }
  }

 private:
  __device__ const std::byte* row(const int32_t* rows, int position) const {
    const bool list = keys_.rows.selected != nullptr;
    const int found = rows[list ? position : position / kPageRows];
    const int64_t page = list ? found / kPageRows : found;
    return keys_.rows.base + page * keys_.rows.block_bytes + (list ? found % kPageRows : row_) * keys_.rows.row_bytes;
  }

  __device__ void copy_chunk(std::byte* stage, uint32_t at, const std::byte* row, bool live) const {
    if (keys_.direct) {
      return ptx::copy_async16(ptx::shared_address(stage) + at, row + element_ * 2, live);
    }
    mma::Eight eight{};
#pragma unroll 1
    for (int e = 0; e < 8 && live; ++e) eight.v[e] = stored_element(keys_.dtype, row, element_ + e);
    mma::store_chunk(at, stage, eight.rounded());
  }

  const mma::TileSource keys_;
  const int first_, positions_;
  const int row_, chunk_, element_;  // of a tile's place
  int tile_;                         // counted from the piece's first position
  const std::byte* weights_;
};

// Sums a piece's tiles, by a warpgroup.
class SliceAdder {
 public:
  __device__ SliceAdder(const AttentionWork& unit) : both_(!few_queries(unit)) {}

  // How the tile in a stage joins those before; meanwhile the products of one before may be under way.
  __device__ __forceinline__ void join(const std::byte* stage) {
    const auto* const maxima = reinterpret_cast<const float*>(stage + kValueBytes) + kTilePages * kGroup * 4;
    join_[0] = Join(sums[0].m, maxima[thread_row(0)]);
    if (both_) join_[1] = Join(sums[1].m, maxima[thread_row(1)]);
  }

  // Begins to add that tile.
  __device__ __forceinline__ void add(const std::byte* stage, bool starts) {
    const auto* const fragments = reinterpret_cast<const uint4*>(stage + kValueBytes);
    TileWeights weights;
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) {
      const uint4 f = fragments[k * kGroup + static_cast<int>(threadIdx.x) % kGroup];
      weights.fragments[k][0] = f.x, weights.fragments[k][1] = f.y;
      weights.fragments[k][2] = f.z, weights.fragments[k][3] = f.w;
    }
    weights.scale(join_);
    if (!starts) {
      rescale(acc, 0, join_[0].keep);
      rescale(acc, 1, join_[1].keep);
    }
    ptx::pin<kTilePages * 4>(weights.fragments[0]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) {
      const uint32_t at = ptx::shared_address(stage) + k * kPageRows * 128;
      ptx::wgmma_bf16<kSlice, ptx::Major::kMN>(
          acc, weights.fragments[k], ptx::wgmma_descriptor(at, 0, 1024, ptx::Swizzle::k128), !starts || k > 0);
    }
    ptx::wgmma_commit();
    weights.add_to(sums, join_);
  }

  __device__ __forceinline__ void wait() {
    ptx::wgmma_wait<0>();
    ptx::pin<kSlice / 2>(acc);
  }

  float acc[kSlice / 2];
  mma::MaxSum sums[2];

 private:
  bool both_;
  Join join_[2];
};

__device__ __forceinline__ void leave(const MmaAttention& a, const SliceWork& work, const float (&acc)[kSlice / 2],
                                      const mma::MaxSum (&node)[2]) {
  float* const slot = a.partials + static_cast<int64_t>(work.part) * a.slot.floats();
  const int half = work.slice / (kSlices / 2), first = work.slice % (kSlices / 2) * (kSlice / 16);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (h == 1 && few_queries(work.unit)) continue;
    if (work.pieces == 1) {
      store_out(a, work.unit, h, work.slice * kSlice, acc, node[h]);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kSlice / 16; ++i) {
      const int at = slot_offset(half, h, first + i, static_cast<int>(threadIdx.x) % kGroup);
      *reinterpret_cast<float4*>(slot + at) = four(acc + 8 * i, h);
    }
    if (first == 0) reinterpret_cast<mma::MaxSum*>(slot + slot_sums(half))[thread_row(h)] = node[h];
  }
}

}  // namespace weir::latent
