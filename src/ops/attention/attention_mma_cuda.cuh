// Attention on tensor cores (m16n8k16), numeric specification in attention.h. A block of threads has a tile
// of queries (rows of a span times heads that share a KV head) and passes over tiles of 64 positions, which copies
// bring into two stages of shared memory. Warps are arranged in kRowWarps x kColumnWarps: each has kTiles tiles of
// sixteen queries, and of those a part of the positions in Q K^T and a part of the value's dimensions in P V. How the
// work is arranged changes no bit: every number is one chain of mma over an inner dimension that nobody cuts.
#pragma once

#include "ops/attention/attention_merge_cuda.cuh"
#include "ops/attention/attention_tile_cuda.cuh"

namespace weir {

template <int kKeyDim_, int kValueDim_, bool kShared_, int kTiles_, int kRowWarps_, int kColumnWarps_>
struct MmaShape {
  static constexpr int kKeyDim = kKeyDim_, kValueDim = kValueDim_;  // padded with zeros up to these
  static constexpr bool kShared = kShared_;                         // values are the beginnings of the keys
  static constexpr int kTiles = kTiles_, kRowWarps = kRowWarps_, kColumnWarps = kColumnWarps_;
  static constexpr int kThreads = 32 * kRowWarps * kColumnWarps;
  static constexpr int kQueries = 16 * kTiles * kRowWarps;
  static constexpr int kScoreTiles = kKeyTile / kColumnWarps / 8;   // of eight positions, of a warp
  static constexpr int kValueTiles = kValueDim / kColumnWarps / 8;  // of eight dimensions, of a warp
  // Merged pieces stay in registers where there is room, else in the unit's slot.
  static constexpr bool kKeepsMerged = kTiles * kValueTiles <= 8;

  static constexpr int kQueryBytes = kQueries * kKeyDim * 2;
  static constexpr int kKeyBytes = kKeyTile * kKeyDim * 2;
  static constexpr int kStageBytes = kKeyBytes + (kShared ? 0 : kKeyTile * kValueDim * 2);
  static constexpr int kWeightBytes = kColumnWarps == 1 ? 0 : kQueries * kKeyTile * 2;
  static constexpr int kMaximumBytes = kColumnWarps == 1 ? 0 : kQueries * kColumnWarps * 4;
  static constexpr int kSharedBytes =
      kQueryBytes + 2 * kStageBytes + kWeightBytes + kMaximumBytes + static_cast<int>(sizeof(AttentionPlan));
  static constexpr int kSlotFloats = kQueries * (kValueDim + 2);
  // Blocks that an SM holds at a time: what shared memory allows, where registers are not too scarce then.
  static constexpr int kBlocks = kSharedBytes > 110 << 10 ? 1 : kSharedBytes > 75 << 10 || kRowWarps > 1 ? 2 : 3;
};

// A unit of work in the hands of a block of threads.
template <class S>
class MmaUnit {
 public:
  __device__ MmaUnit(const MmaAttention& a, const StepView& step, const AttentionUnit& unit, float* slot,
                     std::byte* shared)
      : a_(a),
        unit_(unit),
        slot_(slot),
        shared_(shared),
        keys_(paged_rows(step, span_of(step), a.args.key, list()), a.args.dtype, kv_head() * a.args.key_dim,
              a.args.key_dim, S::kKeyDim),
        values_(paged_rows(step, span_of(step), a.args.value, list()), a.args.dtype,
                kv_head() * a.args.value_head_stride, a.args.value_dim, S::kValueDim),
        heads_(min(a.geometry.tile_heads, a.geometry.q_per_kv - group() * a.geometry.tile_heads)),
        count_(static_cast<int>(unit.block.rows) * heads_),
        first_(max(first_visible(unit.block.position, a.args.window), unit.first_piece * unit.block.piece)),
        last_(min(unit.block.position + unit.block.rows, (unit.first_piece + unit.pieces) * unit.block.piece) - 1) {}

  __device__ void run() {
    load_queries();
    find_positions();
    const int64_t begin = first_ / kKeyTile * kKeyTile;
    load(begin, 0);
    load(begin + kKeyTile, 1);
    start_piece();
    bool first_piece = true;
    int stage = 0;
    for (int64_t tile = begin; tile <= last_; tile += kKeyTile, stage ^= 1) {
      cuda::ptx::wait_copies<1>();
      __syncthreads();
      add_tile(tile, shared_ + S::kQueryBytes + stage * S::kStageBytes);
      __syncthreads();
      load(tile + 2 * kKeyTile, stage);
      const bool last_piece = tile + kKeyTile > last_;
      if (last_piece || ((tile + kKeyTile) & (unit_.block.piece - 1)) == 0) {
        end_piece(first_piece, last_piece);
        first_piece = false;
        start_piece();
      }
    }
    cuda::ptx::wait_copies<0>();
    __syncthreads();  // the next unit's queries
  }

 private:
  __device__ int lane() const { return threadIdx.x % 32; }
  __device__ int row_warp() const { return threadIdx.x / 32 / S::kColumnWarps; }
  __device__ int column_warp() const { return threadIdx.x / 32 % S::kColumnWarps; }
  __device__ int group() const { return unit_.tile % a_.geometry.head_groups; }
  __device__ int64_t kv_head() const { return unit_.tile / a_.geometry.head_groups; }
  __device__ const int32_t* list() const { return a_.selected.of(unit_.entry); }
  __device__ const SpanView& span_of(const StepView& step) const {
    return step.spans[static_cast<size_t>(step.row_spans[static_cast<size_t>(unit_.block.row)])];
  }
  // The query that half h of this thread's numbers of tile t belong to.
  __device__ int query(int t, int h) const { return (row_warp() * S::kTiles + t) * 16 + lane() / 4 + 8 * h; }
  __device__ bool has_queries(int t) const { return (row_warp() * S::kTiles + t) * 16 < count_; }
  __device__ int64_t first_head() const { return kv_head() * a_.geometry.q_per_kv + group() * a_.geometry.tile_heads; }

  __device__ void load_queries() {
    constexpr int kChunks = S::kKeyDim / 8;
    const int key_dim = static_cast<int>(a_.args.key_dim);
    for (int i = threadIdx.x; i < S::kQueries * kChunks; i += S::kThreads) {
      const int n = i / kChunks, c = i % kChunks;
      const float* q = a_.args.q + (unit_.block.row + n / heads_) * a_.args.q_stride +
                       (first_head() + n % heads_) * a_.args.key_dim + c * 8;
      mma::store_chunk(mma::chunk_offset(n, c, S::kKeyDim * 2), shared_,
                       mma::round_chunk(q, n < count_ ? key_dim - c * 8 : 0));
    }
  }

  __device__ void find_positions() {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int n = query(t, h);
        const int64_t p = unit_.block.position + n / heads_;
        sees_to_[t][h] = n < count_ ? static_cast<int>(p) : -1;
        sees_from_[t][h] = n < count_ ? static_cast<int>(first_visible(p, a_.args.window)) : 0;
      }
    }
  }

  __device__ void load(int64_t tile, int stage) {
    if (tile <= last_) {
      std::byte* to = shared_ + S::kQueryBytes + stage * S::kStageBytes;
      mma::load_tile<S::kKeyDim, S::kThreads>(keys_, tile, first_, last_, to);
      if constexpr (!S::kShared) {
        mma::load_tile<S::kValueDim, S::kThreads>(values_, tile, first_, last_, to + S::kKeyBytes);
      }
    }
    cuda::ptx::commit_copies();
  }

  __device__ void start_piece() {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      max_[t][0] = max_[t][1] = -__builtin_inff();
#pragma unroll
      for (int i = 0; i < 4; ++i) sum_[t][i] = 0;
#pragma unroll
      for (int n = 0; n < S::kValueTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[t][n][i] = 0;
      }
    }
  }

  __device__ void add_tile(int64_t tile, std::byte* stage) {
    float scores[S::kTiles][S::kScoreTiles][4];
    multiply_keys(cuda::ptx::shared_address(stage), scores);
    mask(static_cast<int>(tile), scores);
    const uint32_t weights = cuda::ptx::shared_address(shared_ + S::kQueryBytes + 2 * S::kStageBytes);
    weigh(scores, weights);
    const uint32_t values = cuda::ptx::shared_address(stage + (S::kShared ? 0 : S::kKeyBytes));
    multiply_values(values, scores, weights);
  }

  __device__ void multiply_keys(uint32_t keys, float (&scores)[S::kTiles][S::kScoreTiles][4]) {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[t][n][i] = 0;
      }
    }
    if (!has_queries(0)) return;
    const uint32_t queries = cuda::ptx::shared_address(shared_);
    const int first = column_warp() * (kKeyTile / S::kColumnWarps);
    const int l = lane();
#pragma unroll 4
    for (int k = 0; k < S::kKeyDim / 16; ++k) {
      uint32_t b[S::kScoreTiles][2];
      if constexpr (S::kScoreTiles == 1) {
        cuda::ptx::load_matrix_x2(b[0], keys + mma::chunk_offset(first + l % 8, 2 * k + l / 8 % 2, S::kKeyDim * 2));
      } else {
#pragma unroll
        for (int n = 0; n < S::kScoreTiles; n += 2) {
          cuda::ptx::load_matrix_x4(
              b[n], keys + mma::chunk_offset(first + 8 * n + l / 16 * 8 + l % 8, 2 * k + l / 8 % 2, S::kKeyDim * 2));
        }
      }
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        if (t > 0 && !has_queries(t)) continue;
        uint32_t a[4];
        const int row = (row_warp() * S::kTiles + t) * 16 + l % 16;
        cuda::ptx::load_matrix_x4(a, queries + mma::chunk_offset(row, 2 * k + l / 16, S::kKeyDim * 2));
#pragma unroll
        for (int n = 0; n < S::kScoreTiles; ++n) cuda::ptx::mma_bf16(scores[t][n], a, b[n][0], b[n][1]);
      }
    }
  }

  // Scores of positions that a query does not see become minus infinity.
  __device__ void mask(int tile, float (&scores)[S::kTiles][S::kScoreTiles][4]) {
    const int first = tile + column_warp() * (kKeyTile / S::kColumnWarps) + lane() % 4 * 2;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (sees_from_[t][h] <= tile && sees_to_[t][h] >= tile + kKeyTile - 1) continue;
#pragma unroll
        for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int j = first + 8 * n + i;
            if (j < sees_from_[t][h] || j > sees_to_[t][h]) scores[t][n][2 * h + i] = -__builtin_inff();
          }
        }
      }
    }
  }

  // Scores become weights; sums and accumulators are scaled to the new maxima.
  __device__ void weigh(float (&scores)[S::kTiles][S::kScoreTiles][4], uint32_t weights) {
    float most[S::kTiles][2];
    const float c = a_.scale2;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float m = -__builtin_inff();
#pragma unroll
        for (int n = 0; n < S::kScoreTiles; ++n) {
          m = fmaxf(m, fmaxf(scores[t][n][2 * h] * c, scores[t][n][2 * h + 1] * c));
        }
        most[t][h] = cuda::warp_max<4>(m);
      }
    }
    if constexpr (S::kColumnWarps > 1) share_maxima(most);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float m = fmaxf(max_[t][h], ceilf(most[t][h]));
        const float shift = m == -__builtin_inff() ? 0.f : -m;
        rescale(t, h, mma::power(max_[t][h], m));
        max_[t][h] = m;
#pragma unroll
        for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) {
            scores[t][n][i] = cuda::ptx::exp2_approx(fmaf(scores[t][n][i], c, shift));
          }
        }
      }
    }
    if constexpr (S::kColumnWarps > 1) share_weights(scores, weights);
  }

  __device__ void rescale(int t, int h, float factor) {
    if (__all_sync(kAll, factor == 1.f)) return;
#pragma unroll
    for (int i = 2 * h; i < 2 * h + 2; ++i) {
      sum_[t][i] *= factor;
#pragma unroll
      for (int n = 0; n < S::kValueTiles; ++n) acc_[t][n][i] *= factor;
    }
  }

  __device__ void share_maxima(float (&most)[S::kTiles][2]) {
    float* maxima = reinterpret_cast<float*>(shared_ + S::kQueryBytes + 2 * S::kStageBytes + S::kWeightBytes);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (lane() % 4 == 0) maxima[query(t, h) * S::kColumnWarps + column_warp()] = most[t][h];
      }
    }
    sync_row_warps();
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int w = 0; w < S::kColumnWarps; ++w) {
          most[t][h] = fmaxf(most[t][h], maxima[query(t, h) * S::kColumnWarps + w]);
        }
      }
    }
  }

  __device__ void share_weights(const float (&scores)[S::kTiles][S::kScoreTiles][4], uint32_t) {
    std::byte* weights = shared_ + S::kQueryBytes + 2 * S::kStageBytes;
    const int chunk = column_warp() * S::kScoreTiles, in_chunk = lane() % 4 * 4;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < S::kScoreTiles; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          *reinterpret_cast<uint32_t*>(weights + mma::chunk_offset(query(t, h), chunk + n, kKeyTile * 2) + in_chunk) =
              cuda::pack_bf16(scores[t][n][2 * h], scores[t][n][2 * h + 1]);
        }
      }
    }
    sync_row_warps();
  }

  // The warps that share queries.
  __device__ void sync_row_warps() { cuda::ptx::named_barrier_sync(1 + row_warp(), 32 * S::kColumnWarps); }

  __device__ void multiply_values(uint32_t values, const float (&scores)[S::kTiles][S::kScoreTiles][4],
                                  uint32_t weights) {
    if (!has_queries(0)) return;
    const int first_chunk = column_warp() * S::kValueTiles;
    const int l = lane();
#pragma unroll
    for (int k = 0; k < kKeyTile / 16; ++k) {
      uint32_t a[S::kTiles][4];
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        if constexpr (S::kColumnWarps > 1) {
          cuda::ptx::load_matrix_x4(a[t], weights_row(weights, t, k));
        } else {
          for (int i = 0; i < 4; ++i) {
            const float* pair = &scores[t][2 * k + i / 2][i % 2 * 2];
            a[t][i] = cuda::pack_bf16(pair[0], pair[1]);
          }
        }
        cuda::ptx::mma_bf16(sum_[t], a[t], kOnes, kOnes);
      }
#pragma unroll
      for (int n = 0; n < S::kValueTiles; n += 2) {
        uint32_t b[4];
        cuda::ptx::load_matrix_x4_transposed(
            b, values + mma::chunk_offset(16 * k + l % 16, first_chunk + n + l / 16, value_row_bytes()));
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
          if (t > 0 && !has_queries(t)) continue;
          cuda::ptx::mma_bf16(acc_[t][n], a[t], b[0], b[1]);
          cuda::ptx::mma_bf16(acc_[t][n + 1], a[t], b[2], b[3]);
        }
      }
    }
  }
  // This lane's row of the weights' matrices of step k.
  __device__ uint32_t weights_row(uint32_t weights, int t, int k) const {
    const int row = (row_warp() * S::kTiles + t) * 16 + lane() % 16;
    return weights + mma::chunk_offset(row, 2 * k + lane() / 16, kKeyTile * 2);
  }
  static constexpr __device__ int value_row_bytes() { return (S::kShared ? S::kKeyDim : S::kValueDim) * 2; }

  // Merges the piece into those before it, and after the last one leaves the result.
  __device__ void end_piece(bool first, bool last) {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) end_piece(t, h, first, last);
    }
  }

  __device__ void end_piece(int t, int h, bool first, bool last) {
    const int n = query(t, h);
    if (n >= count_) return;
    mma::MaxSum all{max_[t][h], sum_[t][2 * h]};
    if (!first) {
      all = merged_max_sum_[t][h];
      const mma::Merge merge = mma::merge(all, {max_[t][h], sum_[t][2 * h]});
#pragma unroll
      for (int v = 0; v < S::kValueTiles; ++v) {
        const float2 before = merged(t, v, h, n);
        acc_[t][v][2 * h] = fmaf(before.x, merge.keep, acc_[t][v][2 * h] * merge.add);
        acc_[t][v][2 * h + 1] = fmaf(before.y, merge.keep, acc_[t][v][2 * h + 1] * merge.add);
      }
    }
    if (!last) {
      keep_merged(t, h, n, all);
    } else if (unit_.whole()) {
      write_out(t, h, n, all);
    } else {
      write_slot(t, h, n);
      if (column_warp() == 0 && lane() % 4 == 0) *reinterpret_cast<float2*>(max_sum_of(n)) = {all.m, all.l};
    }
  }

  __device__ float2 merged(int t, int v, int h, int n) const {
    if constexpr (S::kKeepsMerged) {
      return {merged_[t][v][2 * h], merged_[t][v][2 * h + 1]};
    } else {
      return reinterpret_cast<const float2*>(slot_of(n))[column(v) / 2];
    }
  }
  __device__ void keep_merged(int t, int h, int n, const mma::MaxSum& all) {
    merged_max_sum_[t][h] = all;
    if constexpr (S::kKeepsMerged) {
#pragma unroll
      for (int v = 0; v < S::kValueTiles; ++v) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) merged_[t][v][i] = acc_[t][v][i];
      }
    } else {
      write_slot(t, h, n);
    }
  }

  __device__ int column(int v) const { return (column_warp() * S::kValueTiles + v) * 8 + lane() % 4 * 2; }
  __device__ float* slot_of(int n) const { return slot_ + n * S::kValueDim; }
  __device__ float* max_sum_of(int n) const { return slot_ + S::kQueries * S::kValueDim + n * 2; }

  __device__ void write_slot(int t, int h, int n) {
    float2* to = reinterpret_cast<float2*>(slot_of(n));
#pragma unroll
    for (int v = 0; v < S::kValueTiles; ++v) to[column(v) / 2] = {acc_[t][v][2 * h], acc_[t][v][2 * h + 1]};
  }

  __device__ void write_out(int t, int h, int n, mma::MaxSum& all) {
    const int64_t head = first_head() + n % heads_;
    const float keep = a_.args.sinks != nullptr ? mma::merge_sink(all, a_.args.sinks[head]) : 1.f;
    float* out = a_.args.out + (unit_.block.row + n / heads_) * a_.args.out_stride + head * a_.args.value_dim;
#pragma unroll
    for (int v = 0; v < S::kValueTiles; ++v) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (column(v) + i < a_.args.value_dim) out[column(v) + i] = acc_[t][v][2 * h + i] * keep / all.l;
      }
    }
  }

  static constexpr unsigned kAll = 0xffffffffu;
  static constexpr uint32_t kOnes = 0x3f803f80u;  // two ones
  static constexpr int kMergedTiles = S::kKeepsMerged ? S::kValueTiles : 1;

  const MmaAttention& a_;
  const AttentionUnit& unit_;
  float* slot_;
  std::byte* shared_;
  mma::TileSource keys_, values_;
  int heads_;
  int count_;             // queries
  int64_t first_, last_;  // positions of the unit
  int sees_from_[S::kTiles][2], sees_to_[S::kTiles][2];
  float max_[S::kTiles][2];
  float sum_[S::kTiles][4];
  float acc_[S::kTiles][S::kValueTiles][4];
  float merged_[S::kTiles][kMergedTiles][4];
  mma::MaxSum merged_max_sum_[S::kTiles][2];
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    mma_attention_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  AttentionPlan& plan = *reinterpret_cast<AttentionPlan*>(shared + S::kSharedBytes - sizeof(AttentionPlan));
  if (a.selected.list != nullptr) cuda::ptx::wait_for_previous();  // which has made the lists
  make_plan(plan, *step, a.selected, a.geometry, a.slots);
  cuda::ptx::wait_for_previous();
  for (int u = blockIdx.x; u < plan.units; u += gridDim.x) {
    const AttentionUnit unit = find_unit(plan, *step, a.selected, a.geometry, u);
    if (unit.pieces == 0) continue;
    note_rows(a.merge_rows, unit, u, threadIdx.x, S::kThreads);
    float* slot = a.partials + static_cast<int64_t>(plan.split ? u : blockIdx.x) * S::kSlotFloats;
    MmaUnit<S>(a, *step, unit, slot, shared).run();
  }
}

template <class S>
MmaKernels mma_kernels() {
  MmaKernels kernels{.attend = mma_attention_kernel<S>,
                     .threads = S::kThreads,
                     .shared_bytes = S::kSharedBytes,
                     .slot = {S::kQueries, S::kValueDim}};
  cuda::allow_shared(kernels.attend, S::kSharedBytes);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&kernels.blocks_per_sm, kernels.attend, S::kThreads, S::kSharedBytes);
  return kernels;
}

}  // namespace weir
