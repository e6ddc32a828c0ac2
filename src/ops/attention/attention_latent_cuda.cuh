// Attention over latents, keys of 576 whose first 512 elements are the values, by wgmma; numeric specification in
// attention.h. A block has four warpgroups, which hand tiles of 64 positions on to each other:
//   one copies tiles from the pages into two stages of shared memory;
//   one multiplies its 64 queries (rows of a span times heads) by a tile's keys and makes weights of the scores;
//   two multiply the weights by the tile's values, each half of the dimensions, and merge pieces.
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
inline constexpr int kWeightBytes = kQueries * kKeyTile * 2;

// Behind queries, stages and weights in shared memory.
struct Exchange {
  // For each query, from the warpgroup that makes weights, with them.
  float scale[kQueries];                   // what acc is multiplied by before a tile is added
  float keep[kQueries], add[kQueries];     // at a piece's end: merged = merged * keep + acc * add
  float out_scale[kQueries];               // at the end of all pieces: out = merged * out_scale
  uint64_t full[kStages], empty[kStages];  // a tile is there, has been used
  uint64_t weights_full, weights_empty;
  WorkRing ring;
  AttentionPlan plan;
};
inline constexpr int kExchangeAt = kTileBytes * (1 + kStages) + kWeightBytes;
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

__device__ __forceinline__ void copy_tiles(const MmaAttention& a, const StepView& step, const AttentionWork& unit,
                                           std::byte* stages, Exchange& exchange, Turn& turn) {
  const SpanView& span = span_of(step, a.selected, unit.entry);
  const mma::TileSource keys(paged_rows(step, span, a.args.key, a.selected.of(unit.entry)), a.args.dtype, 0, kKeyDim,
                             kKeyDim);
#pragma unroll 1
  for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
    ptx::mbarrier_wait(&exchange.empty[turn.stage()], turn.parity() ^ 1);
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
      : a_(a), queries_(ptx::shared_address(shared)), weights_(shared + kTileBytes * (1 + kStages)), to_(exchange) {}

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
    ptx::mbarrier_wait(&to_.weights_empty, (turn.count & 1) ^ 1);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = first_query_ + 8 * h;
#pragma unroll
      for (int k = 0; k < kKeyTile / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          *reinterpret_cast<uint32_t*>(weights_ + mma::chunk_offset(n, 2 * k + i, kKeyTile * 2) + lane % 4 * 4) =
              weights[k][2 * i + h];
        }
      }
      if (lane % 4 == 0) to_.scale[n] = scale[h];
      if (unit.ends_piece(tile)) end_piece(unit, tile, h, n, slot);
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&to_.weights_full);
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

  __device__ void end_piece(const AttentionWork& unit, int tile, int h, int n, float* slot) {
    const mma::Merge merge = softmax_.end_piece(h, unit.in_first_piece(tile));
    if (threadIdx.x % 4 != 0) return;
    to_.keep[n] = merge.keep;
    to_.add[n] = merge.add;
    if (!unit.is_last(tile) || n >= unit.count) return;
    mma::MaxSum& all = softmax_.merged[h];
    if (unit.whole()) {
      to_.out_scale[n] = mma::out_scale(all, a_.args.sinks, unit.first_head + n % unit.heads);
    } else {
      *reinterpret_cast<float2*>(slot + kQueries * kValueDim + n * 2) = {all.m, all.l};
    }
  }

  const MmaAttention& a_;
  uint32_t queries_;
  std::byte* weights_;
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
      ptx::mbarrier_wait(&from_.weights_full, turn.count & 1);
      rescale(unit.starts_piece(tile));
      multiply(turn);
      const bool ends_piece = unit.ends_piece(tile);
      float keep[2], add[2], out_scale[2];
      if (ends_piece) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int n = first_query_ + 8 * h;
          keep[h] = from_.keep[n], add[h] = from_.add[n], out_scale[h] = from_.out_scale[n];
        }
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        ptx::mbarrier_arrive(&from_.empty[turn.stage()]);
        ptx::mbarrier_arrive(&from_.weights_empty);
      }
      if (!ends_piece) continue;
      const bool out = unit.is_last(tile) && unit.whole();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int n = first_query_ + 8 * h;
        if (n >= unit.count) continue;
        float* const merged = slot + n * kValueDim;
        if (!unit.in_first_piece(tile)) merge(h, merged, keep[h], add[h]);
        write(h, out ? mma::ResultRow(a_, unit, n) : mma::ResultRow(merged), out ? out_scale[h] : 1.f);
      }
    }
  }

 private:
  __device__ void rescale(bool starts_piece) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = starts_piece ? 0.f : from_.scale[first_query_ + 8 * h];
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
    const uint32_t values = stages_ + turn.stage() * kTileBytes + half_ * (kHalf / 64) * ColumnsOf64::kBytes;
    const uint32_t weights = stages_ + kStages * kTileBytes;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeyTile / 16; ++k) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {  // ptxas refuses 256 dimensions at once in so large a block
        const uint32_t at = values + part * (kHalf / 2 / 64) * ColumnsOf64::kBytes + k * 16 * 128;
        ptx::wgmma_bf16_shared<kHalf / 2, ptx::Major::kK, ptx::Major::kMN>(
            acc_ + part * (kHalf / 4), k_major(weights + k * 32),
            ptx::wgmma_descriptor(at, ColumnsOf64::kBytes, 1024, ptx::Swizzle::k128));
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin<kHalf / 2>(acc_);
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

  __device__ void write(int h, const mma::ResultRow& to, float scale) const {
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j) {
      to.store(column(j), acc_[4 * j + 2 * h] * scale, acc_[4 * j + 2 * h + 1] * scale);
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
