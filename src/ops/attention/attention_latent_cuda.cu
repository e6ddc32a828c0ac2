#include "ops/attention/attention_latent_cuda.cuh"

namespace weir {
namespace latent {
namespace {

__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  Exchange& exchange = *reinterpret_cast<Exchange*>(shared + kExchangeAt);
  const AttentionPlan& plan = exchange.plan;
  ptx::let_next_start();
  if (a.selected.list != nullptr) ptx::wait_for_previous();  // which has made the lists
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(&exchange.full[s], kGroup);
      ptx::mbarrier_init(&exchange.weights_full[s], 4);  // warps
      for (uint64_t& empty : exchange.empty[s]) ptx::mbarrier_init(&empty, 8);
    }
    exchange.ring.init(12);
    ptx::mbarrier_fence_init();
  }
  make_plan(exchange.plan, *step, a.selected, a.geometry, a.slots, gridDim.x);
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroup, thread = static_cast<int>(threadIdx.x) - kGroup;
  const auto load_queries = [&](const AttentionWork& unit, int threads) {
    mma::load_queries<kKeyDim, kQueries, 3, ColumnsOf64>(a, unit, 0, shared, thread, threads);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1, threads);
  };
  Turn turn;
  if (warpgroup == 0) {
    ptx::lower_registers<56>();
    give_work(a, *step, plan, exchange.ring, threadIdx.x == 0, [&](const AttentionWork& unit) {
      note_rows(a.merge_rows, a.geometry, unit, threadIdx.x, kGroup);
      copy_tiles(a, *step, unit, shared + kTileBytes, exchange, turn);
    });
  } else if (warpgroup == 1) {
    ptx::lower_registers<104>();
    Weigher weigher(a, shared, exchange);
    take_work(a, plan, exchange.ring, [&](const AttentionWork& unit, float* slot, bool first) {
      if (!first) ptx::named_barrier_sync(2, kGroup);  // the queries of the unit before have been used
      load_queries(unit, first ? 3 * kGroup : kGroup);
      weigher.run(unit, slot, turn);
    });
  } else {
    ptx::raise_registers<176>();
    Adder adder(a, warpgroup - 2, shared, exchange);
    take_work(a, plan, exchange.ring, [&](const AttentionWork& unit, float* slot, bool first) {
      if (first) load_queries(unit, 3 * kGroup);
      adder.run(unit, slot, turn);
    });
  }
}

}  // namespace
}  // namespace latent

MmaKernels latent_kernels() {
  MmaKernels kernels{.attend = latent::attend_kernel,
                     .threads = latent::kThreads,
                     .shared_bytes = latent::kSharedBytes,
                     .slot = {latent::kQueries, latent::kValueDim}};
  cuda::allow_shared(kernels.attend, kernels.shared_bytes);
  return kernels;
}

}  // namespace weir
