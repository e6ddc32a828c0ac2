#include "device/cuda/emulated/barrier.h"

#include "device/cuda/emulated/block.h"

namespace weir::emulated {

namespace {
BarrierBits& bits(uint64_t* barrier) { return *reinterpret_cast<BarrierBits*>(barrier); }

void end_phase_if_complete(BarrierBits& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.expected;
  barrier.phase = barrier.phase ? 0 : -1;
  progress();
}
}  // namespace

void barrier_init(uint64_t* barrier, int arrivals) {
  const uint16_t count = static_cast<uint16_t>(arrivals);
  bits(barrier) = {.expected = count, .pending = count, .phase = 0, .bytes = 0};
}

void barrier_arrive(uint64_t* barrier) {
  BarrierBits& state = bits(barrier);
  if (state.pending == 0) fail_kernel("an mbarrier gets more arrivals than it was initialised for");
  --state.pending;
  end_phase_if_complete(state);
}

void barrier_expect_bytes(uint64_t* barrier, size_t bytes) { bits(barrier).bytes += static_cast<int32_t>(bytes); }

void barrier_complete_bytes(uint64_t* barrier, size_t bytes) {
  BarrierBits& state = bits(barrier);
  state.bytes -= static_cast<int32_t>(bytes);
  end_phase_if_complete(state);
}

bool barrier_passed(uint64_t* barrier, int parity) {
  std::vector<Copy> copies;
  copies.swap(current_block->cluster->bulk_loads);
  for (const Copy& copy : copies) copy.run();
  return (bits(barrier).phase ? 1 : 0) != parity;
}

}  // namespace weir::emulated
