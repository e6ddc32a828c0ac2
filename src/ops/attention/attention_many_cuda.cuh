// Attention of many queries that share a KV head (prompts), by wgmma; numeric specification in attention.h. A block has
// three warpgroups: one copies tiles of 64 positions from the pages into a ring of slots, keys and values in turn; two
// have 64 queries each (rows of a span times heads) and do everything else for them.
#pragma once

#include "ops/attention/attention_softmax_cuda.cuh"
#include "ops/attention/attention_work_cuda.cuh"

namespace weir::many {

namespace ptx = cuda::ptx;
using mma::ColumnsOf64;

inline constexpr int kGroup = 128;  // threads of a warpgroup
inline constexpr int kThreads = 3 * kGroup, kQueries = 2 * 64;

template <int kDim_>
struct Shape {
  static constexpr int kDim = kDim_;  // of keys and of values, padded with zeros
  static constexpr int kTileBytes = kKeyTile * kDim * 2;
  // What is merged of pieces lies in shared memory where there is room, else in the unit's slot.
  static constexpr bool kMergedShared = kDim <= 128;
  static constexpr int kMergedBytes = kMergedShared ? kQueries * kDim * 4 : 0;
  static constexpr int kRing = kDim > 128 ? 5 : 6;
  static constexpr int kRingAt = 2 * kTileBytes;  // behind the queries
  static constexpr int kMergedAt = kRingAt + kRing * kTileBytes;
  static constexpr int kExchangeAt = kMergedAt + kMergedBytes;
};

template <int kRing>
struct Exchange {
  uint64_t full[kRing], empty[kRing];
  WorkRing ring;
  AttentionPlan plan;
};

// Counts what passes through the ring.
template <int kRing>
struct Turn {
  int slot = 0, parity = 0;

  __device__ void next() {
    if (++slot == kRing) slot = 0, parity ^= 1;
  }
};

// --- copies ---------------------------------------------------------------------------------------------------------

template <class S>
__device__ __forceinline__ void copy_tiles(const MmaAttention& a, const StepView& step, const AttentionWork& unit,
                                           std::byte* ring, Exchange<S::kRing>& exchange, Turn<S::kRing>& turn) {
  const SpanView& span = span_of(step, a.selected, unit.entry);
  const int32_t* list = a.selected.of(unit.entry);
  const mma::TileSource keys(paged_rows(step, span, a.args.key, list), a.args.dtype, unit.kv_head * a.args.key_dim,
                             a.args.key_dim, S::kDim);
  const mma::TileSource values(paged_rows(step, span, a.args.value, list), a.args.dtype,
                               unit.kv_head * a.args.value_head_stride, a.args.value_dim, S::kDim);
  const auto copy = [&](const mma::TileSource& source, int tile) {
    ptx::mbarrier_wait(&exchange.empty[turn.slot], turn.parity ^ 1);
    mma::load_tile<S::kDim, kGroup, ColumnsOf64>(source, tile, unit.first, unit.last, ring + turn.slot * S::kTileBytes,
                                                 threadIdx.x);
    if (source.direct) {
      ptx::arrive_after_copies(&exchange.full[turn.slot]);
    } else {
      ptx::mbarrier_arrive(&exchange.full[turn.slot]);
    }
    turn.next();
  };
#pragma unroll 1
  for (int i = 2 * unit.first_tile() / kKeyTile; i / 2 * kKeyTile <= unit.last; ++i) {
    copy(i % 2 == 0 ? keys : values, i / 2 * kKeyTile);
  }
}

// --- everything else, for 64 queries --------------------------------------------------------------------------------

template <class S>
class Attender {
 public:
  // By a warpgroup, half 0 or 1 of the block's queries.
  __device__ Attender(const MmaAttention& a, int half, std::byte* shared, Exchange<S::kRing>& exchange)
      : a_(a),
        half_(half),
        shared_(shared),
        exchange_(exchange),
        queries_(shared + half * S::kTileBytes),
        thread_(static_cast<int>(threadIdx.x) % kGroup) {}

  __device__ void run(const AttentionWork& unit, float* slot, Turn<S::kRing>& turn) {
    ptx::named_barrier_sync(1 + half_, kGroup);  // the queries of the unit before have been used
    mma::load_queries<S::kDim, 64, 4, ColumnsOf64>(a_, unit, half_ * 64, queries_, thread_, kGroup);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1 + half_, kGroup);
    first_query_ = half_ * 64 + thread_ / 32 * 16 + thread_ % 32 / 4;
    softmax_.start_unit(a_, unit, first_query_, first_query_ + 8);
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile) {
      const bool starts = unit.starts_piece(tile);
      if (starts) softmax_.start_piece();
      float scores[kKeyTile / 8][4];
      multiply_keys(turn, scores);
      softmax_.mask(tile, scores);
      uint32_t weights[kKeyTile / 16][4];
      float scale[2];
      softmax_.weigh(scores, a_.scale2, weights, scale);
      rescale(scale, starts);
      multiply_values(turn, weights);
      if (unit.ends_piece(tile)) end_piece(unit, tile, slot);
    }
  }

 private:
  // Waits for the next slot of the ring; its address.
  __device__ uint32_t wait(const Turn<S::kRing>& turn) const {
    ptx::mbarrier_wait(&exchange_.full[turn.slot], turn.parity);
    ptx::fence_async_shared();
    return ptx::shared_address(shared_ + S::kRingAt + turn.slot * S::kTileBytes);
  }
  __device__ void release(Turn<S::kRing>& turn) const {
    __syncwarp();
    if (thread_ % 32 == 0) ptx::mbarrier_arrive(&exchange_.empty[turn.slot]);
    turn.next();
  }

  static __device__ uint64_t k_major(uint32_t address) {
    return ptx::wgmma_descriptor(address, 16, 1024, ptx::Swizzle::k128);
  }

  __device__ void multiply_keys(Turn<S::kRing>& turn, float (&scores)[kKeyTile / 8][4]) {
    const uint32_t queries = ptx::shared_address(queries_), keys = wait(turn);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::kDim / 16; ++k) {
      const uint32_t at = k / 4 * ColumnsOf64::kBytes + k % 4 * 32;
      ptx::wgmma_bf16_shared<kKeyTile>(scores[0], k_major(queries + at), k_major(keys + at), k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin<kKeyTile / 2>(scores[0]);
    release(turn);
  }

  __device__ void rescale(const float (&scale)[2], bool starts_piece) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!starts_piece && __all_sync(cuda::kAllLanes, scale[h] == 1.f)) continue;
#pragma unroll
      for (int n = 0; n < S::kDim / 8; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) acc_[n][i] = starts_piece ? 0.f : acc_[n][i] * scale[h];
      }
    }
  }

  __device__ void multiply_values(Turn<S::kRing>& turn, const uint32_t (&weights)[kKeyTile / 16][4]) {
    const uint32_t values = wait(turn);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeyTile / 16; ++k) {
      ptx::wgmma_bf16<S::kDim, ptx::Major::kMN>(
          acc_[0], weights[k],
          ptx::wgmma_descriptor(values + k * 16 * 128, ColumnsOf64::kBytes, 1024, ptx::Swizzle::k128));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin<S::kDim / 2>(acc_[0]);
    release(turn);
  }

  // Merges the piece into those before it, and after the last one leaves the result.
  __device__ void end_piece(const AttentionWork& unit, int tile, float* slot) {
    const bool first = unit.in_first_piece(tile), last = unit.is_last(tile);
    float4* merged = merged_pieces(slot);
    const mma::Merge merge[2] = {softmax_.end_piece(0, first), softmax_.end_piece(1, first)};
    if (!first) {
#pragma unroll
      for (int n = 0; n < S::kDim / 8; ++n) {
        const float4 before = merged[n * kGroup];
        const float all[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[n][i] = fmaf(all[i], merge[i / 2].keep, acc_[n][i] * merge[i / 2].add);
        if (n % 4 == 3) ptx::pin<4>(acc_[n]);  // four loads at a time: there are no registers for more
      }
    }
    if (!last) {
#pragma unroll
      for (int n = 0; n < S::kDim / 8; ++n) merged[n * kGroup] = {acc_[n][0], acc_[n][1], acc_[n][2], acc_[n][3]};
      return;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = first_query_ + 8 * h;
      if (n >= unit.count) continue;
      const mma::MaxSum& all = softmax_.merged[h];
      mma::ResultRow to(slot + n * S::kDim);
      float scale = 1;
      int dims = S::kDim;
      if (unit.whole()) {
        to = mma::ResultRow(a_, unit, n);
        scale = mma::out_scale(all, a_.args.sinks, unit.first_head + n % unit.heads);
        dims = static_cast<int>(a_.args.value_dim);
      } else if (thread_ % 4 == 0) {
        *reinterpret_cast<float2*>(slot + kQueries * S::kDim + n * 2) = {all.m, all.l};
      }
#pragma unroll
      for (int v = 0; v < S::kDim / 8; ++v) {
        const int column = v * 8 + thread_ % 4 * 2;
        to.store(column, acc_[v][2 * h] * scale, acc_[v][2 * h + 1] * scale, dims - column);
      }
    }
  }
  // This thread's numbers, kGroup apart.
  __device__ float4* merged_pieces(float* slot) const {
    float4* all =
        S::kMergedShared ? reinterpret_cast<float4*>(shared_ + S::kMergedAt) : reinterpret_cast<float4*>(slot);
    return all + half_ * (S::kDim / 8) * kGroup + thread_;
  }

  const MmaAttention& a_;
  int half_;
  std::byte* shared_;
  Exchange<S::kRing>& exchange_;
  std::byte* queries_;
  int thread_;
  int first_query_ = 0;
  mma::Softmax softmax_;
  float acc_[S::kDim / 8][4];
};

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  auto& exchange = *reinterpret_cast<Exchange<S::kRing>*>(shared + S::kExchangeAt);
  const AttentionPlan& plan = exchange.plan;
  ptx::let_next_start();
  if (a.selected.list != nullptr) ptx::wait_for_previous();  // which has made the lists
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kRing; ++s) {
      ptx::mbarrier_init(&exchange.full[s], kGroup);
      ptx::mbarrier_init(&exchange.empty[s], 8);  // warps
    }
    exchange.ring.init(8);
    ptx::mbarrier_fence_init();
  }
  make_plan(exchange.plan, *step, a.selected, a.geometry, a.slots, gridDim.x);
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroup;
  Turn<S::kRing> turn;
  if (warpgroup == 0) {
    ptx::lower_registers<56>();
    give_work(PlannedUnits{plan, *step, a.selected, a.geometry}, exchange.ring, threadIdx.x == 0,
              [&](const AttentionWork& unit, bool first) {
                if (first) ptx::wait_for_previous();
                note_rows(a.merge_rows, a.geometry, unit, threadIdx.x, kGroup);
                copy_tiles<S>(a, *step, unit, shared + S::kRingAt, exchange, turn);
              });
  } else {
    ptx::raise_registers<224>();
    Attender<S> attender(a, warpgroup - 1, shared, exchange);
    take_work(a, exchange.ring, [&](const AttentionWork& unit, float* slot, bool) { attender.run(unit, slot, turn); });
  }
}

template <int kDim>
MmaKernels kernels() {
  using S = Shape<kDim>;
  MmaKernels kernels{.attend = attend_kernel<S>,
                     .merge = merge_ascending(),
                     .threads = kThreads,
                     .shared_bytes = S::kExchangeAt + static_cast<int>(sizeof(Exchange<S::kRing>)),
                     .slot = {kQueries, kDim}};
  cuda::allow_shared(kernels.attend, kernels.shared_bytes);
  return kernels;
}

}  // namespace weir::many
