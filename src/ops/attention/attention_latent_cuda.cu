#include "ops/attention/attention_latent_cuda.cuh"

namespace weir {
namespace latent {
namespace {

// Calls work(unit, slot) for this block's units.
template <class Work>
__device__ __forceinline__ void for_units(const MmaAttention& a, const StepView& step, const AttentionPlan& plan,
                                          Work work) {
  for (int u = blockIdx.x; u < plan.units; u += gridDim.x) {
    const AttentionUnit unit = find_unit(plan, step, a.selected, a.geometry, u);
    if (unit.pieces == 0) continue;
    const int64_t slot = plan.split ? u : blockIdx.x;
    work(Unit(a, unit), u, a.partials + slot * a.slot.floats());
  }
}

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
      ptx::mbarrier_init(&exchange.empty[s], 8);  // warps
    }
    ptx::mbarrier_init(&exchange.weights_full, 4);
    ptx::mbarrier_init(&exchange.weights_empty, 8);
    ptx::mbarrier_fence_init();
  }
  make_plan(exchange.plan, *step, a.selected, a.geometry, a.slots);
  ptx::wait_for_previous();
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroup;
  Turn turn;
  if (warpgroup == 0) {
    ptx::lower_registers<56>();
    for_units(a, *step, plan,
              [&](const Unit& unit, int, float*) { copy_tiles(a, *step, unit, shared + kTileBytes, exchange, turn); });
  } else if (warpgroup == 1) {
    ptx::lower_registers<104>();
    Weigher weigher(a, shared, exchange);
    for_units(a, *step, plan, [&](const Unit& unit, int index, float* slot) {
      note_rows(a.merge_rows, unit.of, index, threadIdx.x - kGroup, kGroup);
      load_queries<6>(a, unit, threadIdx.x - kGroup, kGroup, shared);
      ptx::named_barrier_sync(1, kGroup);
      weigher.run(unit, slot, turn);
      ptx::named_barrier_sync(1, kGroup);  // the next unit's queries
    });
  } else {
    ptx::raise_registers<176>();
    Adder adder(a, warpgroup - 2, shared, exchange);
    for_units(a, *step, plan, [&](const Unit& unit, int, float* slot) { adder.run(unit, slot, turn); });
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
