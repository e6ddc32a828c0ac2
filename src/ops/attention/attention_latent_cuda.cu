#include "ops/attention/attention_latent_cuda.cuh"

namespace weir {
namespace latent {
namespace {

// make_units() by all threads, of the warpgroup that copies: what gives units.
template <class MakeUnits>
__device__ __forceinline__ void attend(const StepView& step, const MmaAttention& a, std::byte* shared,
                                       MakeUnits make_units) {
  Exchange& exchange = *reinterpret_cast<Exchange*>(shared + kExchangeAt);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(&exchange.full[s], kGroup);
      ptx::mbarrier_init(&exchange.weights_full[s], 4);  // warps
      for (uint64_t& empty : exchange.empty[s]) ptx::mbarrier_init(&empty, 8);
    }
    exchange.ring.init(12);
    ptx::mbarrier_fence_init();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroup, thread = static_cast<int>(threadIdx.x) - kGroup;
  const auto queries = [&](const AttentionWork& unit, int threads) {
    load_queries(a, unit, shared, thread, threads);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1, threads);
  };
  Turn turn;
  if (warpgroup == 0) {
    ptx::lower_registers<56>();
    give_work(make_units(), exchange.ring, threadIdx.x == 0, [&](const AttentionWork& unit, bool first) {
      copy_tiles(a, step, unit, shared + kTileBytes, exchange, turn, first);
      note_rows(a.merge_rows, a.geometry, unit, threadIdx.x, kGroup);
    });
  } else if (warpgroup == 1) {
    ptx::lower_registers<104>();
    Weigher weigher(a, shared, exchange);
    take_work(a, exchange.ring, [&](const AttentionWork& unit, float*, bool first) {
      if (!first) ptx::named_barrier_sync(2, kGroup);  // the queries of the unit before have been used
      queries(unit, first ? 3 * kGroup : kGroup);
      weigher.run(unit, turn);
    });
  } else {
    ptx::raise_registers<176>();
    Adder adder(a, warpgroup - 2, shared, exchange);
    take_work(a, exchange.ring, [&](const AttentionWork& unit, float* slot, bool first) {
      if (first) queries(unit, 3 * kGroup);
      adder.run(unit, slot, turn);
    });
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  AttentionPlan& plan = reinterpret_cast<Exchange*>(shared + kExchangeAt)->plan;
  ptx::let_next_start();
  if (a.selected.list != nullptr) ptx::wait_for_previous();  // which has made the lists
  make_plan(plan, *step, a.selected, a.geometry, a.slots, gridDim.x);
  attend(*step, a, shared, [&] { return PlannedUnits{plan, *step, a.selected, a.geometry}; });
}

__global__ void __launch_bounds__(kThreads, 1)
    attend_single_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  ptx::let_next_start();
  attend(*step, a, shared, [&] { return SingleUnits(*step, a.geometry, a.slots, gridDim.x); });
}

constexpr int kBatch = 8, kBatchLevels = 3;  // units whose loads are under way together, a node of the tree

struct Node {
  float acc[4] = {};
  mma::MaxSum sum;

  // Takes in the node to the right of it.
  __device__ void add(const Node& right) {
    const mma::Merge merge = mma::merge(sum, right.sum);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = fmaf(acc[i], merge.keep, right.acc[i] * merge.add);
  }
};

// A block for a query; a thread for four dimensions.
__global__ void __launch_bounds__(kGroup) merge_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y;
  ptx::let_next_start();
  if (row >= step->rows) return;
  const AttentionGeometry& g = a.geometry;
  ptx::wait_for_previous();
  const MergeRow of = a.merge_rows[row];
  if (of.slots == 0) return;
  const int group = head / g.tile_heads, heads = min(g.tile_heads, g.q_per_kv - group * g.tile_heads);
  const int query = (static_cast<int>(row) - of.first_row) * heads + head % g.tile_heads;
  // As in an attending block: which thread has this query and four dimensions.
  const bool few = of.queries / g.tile_heads * heads <= kFewQueries;  // the last tile can have fewer heads
  const int wgmma_row = few ? query / 8 * 16 + query % 8 : query;
  const int half = threadIdx.x / (kGroup / 2), i = threadIdx.x / 4 % (kHalf / 16), h = wgmma_row / 8 % 2;
  const int thread = wgmma_row / 16 * 32 + wgmma_row % 8 * 4 + threadIdx.x % 4;
  const float* slot = a.partials + static_cast<int64_t>(of.unit + group * of.slots) * a.slot.floats();
  const float* values = slot + slot_offset(half, h, i, thread);
  const mma::MaxSum* sums = reinterpret_cast<const mma::MaxSum*>(slot + slot_sums(half)) + wgmma_row;
  constexpr int kLevels = kTreeLevels - kBatchLevels;
  Node waiting[kLevels];  // for a right sibling
  const int first = of.first_unit, end = first + of.units;
#pragma unroll 1
  for (int batch = first >> kBatchLevels; batch << kBatchLevels < end; ++batch) {
    Node next[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int unit = batch * kBatch + b;
      if (unit < first || unit >= end) continue;
      const int64_t at = (unit - first) * a.slot.floats();
      const float4 v = *reinterpret_cast<const float4*>(values + at);
      next[b].acc[0] = v.x, next[b].acc[1] = v.y, next[b].acc[2] = v.z, next[b].acc[3] = v.w;
      next[b].sum = *reinterpret_cast<const mma::MaxSum*>(reinterpret_cast<const float*>(sums) + at);
    }
#pragma unroll
    for (int d = 1; d < kBatch; d *= 2) {
#pragma unroll
      for (int b = 0; b < kBatch; b += 2 * d) next[b].add(next[b + d]);
    }
    bool placed = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (placed) continue;
      if (level < kLevels - 1 && (batch >> level & 1) == 0) {
        waiting[level] = next[0];
        placed = true;
      } else {
        waiting[level].add(next[0]);
        next[0] = waiting[level];
        if (level < kLevels - 1) waiting[level] = {};
      }
    }
  }
  Node all;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    waiting[level].add(all);
    all = waiting[level];
  }
  const float scale = mma::out_scale(all.sum, a.args.sinks, head);
  const mma::ResultRow out(a, row, head);
  const int column = half * kHalf + 16 * i + static_cast<int>(threadIdx.x) % 4 * 2;
  out.store(column, fmaf(all.acc[0], scale, 0.f), fmaf(all.acc[1], scale, 0.f));
  out.store(column + 8, fmaf(all.acc[2], scale, 0.f), fmaf(all.acc[3], scale, 0.f));
}

}  // namespace
}  // namespace latent

MmaKernels latent_kernels() {
  MmaKernels kernels{.attend = latent::attend_kernel,
                     .attend_single = latent::attend_single_kernel,
                     .merge = latent::merge_kernel,
                     .tree = true,
                     .threads = latent::kThreads,
                     .shared_bytes = latent::kSharedBytes,
                     .slot = {latent::kQueries, latent::kValueDim, 2}};
  cuda::allow_shared(kernels.attend, kernels.shared_bytes);
  cuda::allow_shared(kernels.attend_single, kernels.shared_bytes);
  add_split_kernels(kernels);
  return kernels;
}

}  // namespace weir
