#include "ops/attention/attention_latent_cuda.cuh"

namespace weir {
namespace latent {
namespace {

// Calls work(unit, its index, slot) for this block's units, of which the first one is known.
template <class Work>
__device__ __forceinline__ void for_units(const MmaAttention& a, const StepView& step, const AttentionPlan& plan,
                                          AttentionUnit unit, Work work) {
  for (int u = blockIdx.x; u < plan.units;) {
    const int64_t slot = plan.split ? u : blockIdx.x;
    if (unit.pieces > 0) work(Unit(a, unit), u, a.partials + slot * a.slot.floats());
    u += gridDim.x;
    if (u < plan.units) unit = find_unit(plan, step, a.selected, a.geometry, u);
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
  make_plan(exchange.plan, *step, a.selected, a.geometry, a.slots, gridDim.x);
  AttentionUnit first{};
  if (static_cast<int>(blockIdx.x) < plan.units) first = find_unit(plan, *step, a.selected, a.geometry, blockIdx.x);
  ptx::wait_for_previous();
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroup, thread = static_cast<int>(threadIdx.x) - kGroup;
  // All but the copying threads load the first unit's queries.
  const auto load_first_queries = [&] {
    if (first.pieces == 0) return;
    load_queries<6>(a, Unit(a, first), thread, 3 * kGroup, shared);
    ptx::named_barrier_sync(1, 3 * kGroup);
  };
  Turn turn;
  if (warpgroup == 0) {
    ptx::lower_registers<56>();
    for_units(a, *step, plan, first,
              [&](const Unit& unit, int, float*) { copy_tiles(a, *step, unit, shared + kTileBytes, exchange, turn); });
  } else if (warpgroup == 1) {
    ptx::lower_registers<104>();
    load_first_queries();
    Weigher weigher(a, shared, exchange);
    for_units(a, *step, plan, first, [&](const Unit& unit, int index, float* slot) {
      note_rows(a.merge_rows, unit.of, index, thread, kGroup);
      if (index != static_cast<int>(blockIdx.x)) {
        ptx::named_barrier_sync(2, kGroup);  // the queries of the unit before have been used
        load_queries<6>(a, unit, thread, kGroup, shared);
        ptx::named_barrier_sync(2, kGroup);
      }
      weigher.run(unit, slot, turn);
    });
  } else {
    ptx::raise_registers<176>();
    load_first_queries();
    Adder adder(a, warpgroup - 2, shared, exchange);
    for_units(a, *step, plan, first, [&](const Unit& unit, int, float* slot) { adder.run(unit, slot, turn); });
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
