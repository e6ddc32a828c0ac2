// The 64 bits of an mbarrier as the emulator uses them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::emulated {

struct BarrierBits {
  uint16_t expected;  // arrivals of a phase
  uint16_t pending;
  int32_t phase : 1;
  int32_t bytes : 31;  // announced and not yet copied
};
static_assert(sizeof(BarrierBits) == sizeof(uint64_t));

void barrier_init(uint64_t* barrier, int arrivals);
void barrier_arrive(uint64_t* barrier);
void barrier_expect_bytes(uint64_t* barrier, size_t bytes);
void barrier_complete_bytes(uint64_t* barrier, size_t bytes);
// Whether the phase with this parity is over. Copies in flight arrive first.
bool barrier_passed(uint64_t* barrier, int parity);

}  // namespace weir::emulated
