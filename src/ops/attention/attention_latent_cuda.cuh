// Attention over latents, keys of 576 whose first 512 elements are the values, by wgmma; numeric specification in
// attention.h. A block has four warpgroups, which hand tiles of 64 positions on to each other:
//   one copies tiles from the pages into two stages of shared memory;
//   one multiplies its 64 queries (rows of a span times heads) by a tile's keys and makes weights of the scores;
//   two multiply the weights by the tile's values, each half of the dimensions, and merge pieces.
#pragma once

#include "ops/attention/attention_merge_cuda.cuh"
#include "ops/attention/attention_tile_cuda.cuh"

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
  float scale[kQueries];                     // what acc is multiplied by before a tile is added
  float keep[kQueries], add[kQueries];       // at a piece's end: merged = merged * keep + acc * add
  float sink_keep[kQueries], sum[kQueries];  // at the end of all pieces: out = merged * sink_keep / sum
  uint64_t full[kStages], empty[kStages];    // a tile is there, has been used
  uint64_t weights_full, weights_empty;
  AttentionPlan plan;
};
inline constexpr int kExchangeAt = kTileBytes * (1 + kStages) + kWeightBytes;
inline constexpr int kSharedBytes = kExchangeAt + static_cast<int>(sizeof(Exchange));

// A unit as all warpgroups see it.
struct Unit {
  __device__ Unit(const MmaAttention& a, const AttentionUnit& unit)
      : of(unit),
        group(unit.tile),
        heads(min(a.geometry.tile_heads, a.geometry.q_per_kv - group * a.geometry.tile_heads)),
        count(static_cast<int>(unit.block.rows) * heads),
        first(static_cast<int>(
            max(first_visible(unit.block.position, a.args.window), unit.first_piece * unit.block.piece))),
        last(static_cast<int>(
            min(unit.block.position + unit.block.rows, (unit.first_piece + unit.pieces) * unit.block.piece) - 1)) {}

  __device__ int first_tile() const { return first / kKeyTile * kKeyTile; }
  __device__ int first_head(const MmaAttention& a) const { return group * a.geometry.tile_heads; }
  // Does a piece end with the tile at this position?
  __device__ bool ends_piece(int tile) const {
    return tile + kKeyTile > last || ((tile + kKeyTile) & (static_cast<int>(of.block.piece) - 1)) == 0;
  }
  __device__ bool starts_piece(int tile) const {
    return tile == first_tile() || (tile & (static_cast<int>(of.block.piece) - 1)) == 0;
  }
  __device__ bool in_first_piece(int tile) const {
    return tile / static_cast<int>(of.block.piece) == static_cast<int>(of.first_piece);
  }

  AttentionUnit of;
  int group, heads;
  int count;        // queries
  int first, last;  // positions
};

__device__ __forceinline__ uint64_t k_major(uint32_t address) {
  return ptx::wgmma_descriptor(address, 16, 1024, ptx::Swizzle::k128);
}

// --- copies ---------------------------------------------------------------------------------------------------------

// Queries as BF16, by `threads` threads of which this one is number `thread`.
template <int kBatch>
__device__ __forceinline__ void load_queries(const MmaAttention& a, const Unit& unit, int thread, int threads,
                                             std::byte* to) {
  constexpr int kChunks = kKeyDim / 8;
  const int first_head = unit.first_head(a);
  for (int begin = thread; begin < kQueries * kChunks; begin += kBatch * threads) {
    float4 v[kBatch][2];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * threads, n = i / kChunks, c = i % kChunks;
      const float* q = a.args.q + (unit.of.block.row + n / unit.heads) * a.args.q_stride +
                       (first_head + n % unit.heads) * kKeyDim + c * 8;
      const bool live = n < unit.count;
      if (a.vectors) {
        v[b][0] = live ? reinterpret_cast<const float4*>(q)[0] : float4{};
        v[b][1] = live ? reinterpret_cast<const float4*>(q)[1] : float4{};
      } else if (live) {
        v[b][0] = {q[0], q[1], q[2], q[3]};
        v[b][1] = {q[4], q[5], q[6], q[7]};
      } else {
        v[b][0] = v[b][1] = float4{};
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * threads, n = i / kChunks, c = i % kChunks;
      if (n >= kQueries) break;
      mma::store_chunk(ColumnsOf64::offset(n, c), to,
                       {cuda::pack_bf16(v[b][0].x, v[b][0].y), cuda::pack_bf16(v[b][0].z, v[b][0].w),
                        cuda::pack_bf16(v[b][1].x, v[b][1].y), cuda::pack_bf16(v[b][1].z, v[b][1].w)});
    }
  }
  ptx::fence_async_shared();
}

// Counts tiles, over all units: which stage, and which of its uses.
struct Turn {
  int count = 0;

  __device__ int stage() const { return count % kStages; }
  __device__ int parity() const { return count / kStages & 1; }
  __device__ void next() { ++count; }
};

__device__ __forceinline__ void copy_tiles(const MmaAttention& a, const StepView& step, const Unit& unit,
                                           std::byte* stages, Exchange& exchange, Turn& turn) {
  const SpanView& span = step.spans[static_cast<size_t>(step.row_spans[static_cast<size_t>(unit.of.block.row)])];
  const mma::TileSource keys(paged_rows(step, span, a.args.key, a.selected.of(unit.of.entry)), a.args.dtype, 0, kKeyDim,
                             kKeyDim);
  for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
    ptx::mbarrier_wait(&exchange.empty[turn.stage()], turn.parity() ^ 1);
    mma::load_tile<kKeyDim, kGroup, ColumnsOf64>(keys, tile, unit.first, unit.last, stages + turn.stage() * kTileBytes);
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

  __device__ void run(const Unit& unit, float* slot, Turn& turn) {
    const int lane = threadIdx.x % 32;
    first_query_ = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = first_query_ + 8 * h;
      const int64_t p = unit.of.block.position + n / unit.heads;
      sees_to_[h] = n < unit.count ? static_cast<int>(p) : -1;
      sees_from_[h] = n < unit.count ? static_cast<int>(first_visible(p, a_.args.window)) : 0;
    }
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      if (unit.starts_piece(tile)) start_piece();
      add_tile(unit, tile, slot, turn);
    }
  }

 private:
  __device__ void start_piece() {
    max_[0] = max_[1] = -__builtin_inff();
#pragma unroll
    for (int i = 0; i < 4; ++i) sum_[i] = 0;
  }

  __device__ void add_tile(const Unit& unit, int tile, float* slot, const Turn& turn) {
    float scores[kKeyTile / 2];
    multiply(turn, scores);
    mask(tile, scores);
    float scale[2];
    uint32_t weights[kKeyTile / 16][4];
    weigh(scores, scale, weights);
    const bool ends_piece = unit.ends_piece(tile);
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
      if (ends_piece) end_piece(unit, tile, h, n, slot);
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&to_.weights_full);
  }

  __device__ void multiply(const Turn& turn, float (&scores)[kKeyTile / 2]) {
    ptx::mbarrier_wait(&to_.full[turn.stage()], turn.parity());
    ptx::fence_async_shared();
    const uint32_t keys = queries_ + kTileBytes * (1 + turn.stage());
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeyDim / 16; ++k) {
      const uint32_t at = k / 4 * ColumnsOf64::kBytes + k % 4 * 32;
      ptx::wgmma_bf16_shared<kKeyTile>(scores, k_major(queries_ + at), k_major(keys + at), k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin<kKeyTile / 2>(scores);
  }

  // Scores of positions that a query does not see become minus infinity.
  __device__ void mask(int tile, float (&scores)[kKeyTile / 2]) const {
    const int first = tile + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (sees_from_[h] <= tile && sees_to_[h] >= tile + kKeyTile - 1) continue;
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int j = first + 8 * n + i;
          if (j < sees_from_[h] || j > sees_to_[h]) scores[4 * n + 2 * h + i] = -__builtin_inff();
        }
      }
    }
  }

  __device__ void weigh(float (&scores)[kKeyTile / 2], float (&scale)[2], uint32_t (&weights)[kKeyTile / 16][4]) {
    const float c = a_.scale2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -__builtin_inff();
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
        most = fmaxf(most, fmaxf(scores[4 * n + 2 * h] * c, scores[4 * n + 2 * h + 1] * c));
      }
      const float m = fmaxf(max_[h], ceilf(cuda::warp_max<4>(most)));
      const float shift = m == -__builtin_inff() ? 0.f : -m;
      scale[h] = mma::power(max_[h], m);
      max_[h] = m;
      sum_[2 * h] *= scale[h];
      sum_[2 * h + 1] *= scale[h];
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
        const float* pair = scores + 4 * n + 2 * h;
        weights[n / 2][n % 2 * 2 + h] =
            cuda::pack_bf16(ptx::exp2_approx(fmaf(pair[0], c, shift)), ptx::exp2_approx(fmaf(pair[1], c, shift)));
      }
    }
#pragma unroll
    for (int k = 0; k < kKeyTile / 16; ++k) ptx::mma_bf16(sum_, weights[k], kOnes, kOnes);
  }

  __device__ void end_piece(const Unit& unit, int tile, int h, int n, float* slot) {
    mma::MaxSum& all = merged_[h];
    const mma::MaxSum piece{max_[h], sum_[2 * h]};
    mma::Merge merge{0, 1};
    if (unit.in_first_piece(tile)) {
      all = piece;
    } else {
      merge = mma::merge(all, piece);
    }
    if (threadIdx.x % 4 != 0) return;
    to_.keep[n] = merge.keep;
    to_.add[n] = merge.add;
    if (tile + kKeyTile <= unit.last || n >= unit.count) return;
    if (unit.of.whole()) {
      const float* sinks = a_.args.sinks;
      to_.sink_keep[n] = sinks == nullptr ? 1.f : mma::merge_sink(all, sinks[unit.first_head(a_) + n % unit.heads]);
      to_.sum[n] = all.l;
    } else {
      *reinterpret_cast<float2*>(slot + kQueries * kValueDim + n * 2) = {all.m, all.l};
    }
  }

  static constexpr uint32_t kOnes = 0x3f803f80u;  // two ones

  const MmaAttention& a_;
  uint32_t queries_;
  std::byte* weights_;
  Exchange& to_;
  int first_query_ = 0;
  int sees_from_[2], sees_to_[2];
  float max_[2];
  float sum_[4];
  mma::MaxSum merged_[2];
};

// --- values ---------------------------------------------------------------------------------------------------------

class Adder {
 public:
  // half: which dimensions.
  __device__ Adder(const MmaAttention& a, int half, std::byte* shared, Exchange& exchange)
      : a_(a), half_(half), stages_(ptx::shared_address(shared) + kTileBytes), from_(exchange) {}

  __device__ void run(const Unit& unit, float* slot, Turn& turn) {
    first_query_ = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      ptx::mbarrier_wait(&from_.weights_full, turn.count & 1);
      rescale(unit.starts_piece(tile));
      multiply(turn);
      const bool ends_piece = unit.ends_piece(tile);
      float keep[2], add[2], sink_keep[2], sum[2];
      if (ends_piece) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int n = first_query_ + 8 * h;
          keep[h] = from_.keep[n], add[h] = from_.add[n], sink_keep[h] = from_.sink_keep[n], sum[h] = from_.sum[n];
        }
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        ptx::mbarrier_arrive(&from_.empty[turn.stage()]);
        ptx::mbarrier_arrive(&from_.weights_empty);
      }
      if (!ends_piece) continue;
      const bool last = tile + kKeyTile > unit.last;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int n = first_query_ + 8 * h;
        if (n >= unit.count) continue;
        if (!unit.in_first_piece(tile)) merge(h, slot + n * kValueDim, keep[h], add[h]);
        if (last && unit.of.whole()) {
          write_out(unit, h, n, sink_keep[h], sum[h]);
        } else {
          write_slot(h, slot + n * kValueDim);
        }
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

  __device__ void write_slot(int h, float* slot) const {
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j) {
      *reinterpret_cast<float2*>(slot + column(j)) = {acc_[4 * j + 2 * h], acc_[4 * j + 2 * h + 1]};
    }
  }

  __device__ void write_out(const Unit& unit, int h, int n, float keep, float sum) const {
    float* out = a_.args.out + (unit.of.block.row + n / unit.heads) * a_.args.out_stride +
                 (unit.first_head(a_) + n % unit.heads) * kValueDim;
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j) {
      out[column(j)] = acc_[4 * j + 2 * h] * keep / sum;
      out[column(j) + 1] = acc_[4 * j + 2 * h + 1] * keep / sum;
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
