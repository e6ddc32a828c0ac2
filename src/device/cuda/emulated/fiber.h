// Switching between the stacks of one OS thread (x86-64, System V).
#pragma once

#include <cstddef>
#include <cstdint>

// Saves the callee's registers on the present stack and its top in *from, then goes on where `to` was saved.
extern "C" void weir_switch_fiber(void** from, void* to);

namespace weir::emulated {

inline constexpr size_t kStackBytes = size_t{128} << 10;

// The top of a stack of its own for the fiber with this index; stacks are made once and used again. Below each lies an
// unmapped page.
std::byte* fiber_stack(int index);

// The saved state of a fiber that starts in `entry` at the first switch to it. `entry` never returns.
void* start_state(std::byte* stack_top, void (*entry)());

}  // namespace weir::emulated
