#include "device/cuda/emulated/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#if !defined(__x86_64__)
#error "the emulator's fibers are written for x86-64"
#endif

asm(R"(
.text
.p2align 4
.globl weir_switch_fiber
.type weir_switch_fiber, @function
weir_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  subq $8, %rsp
  stmxcsr (%rsp)
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  ldmxcsr (%rsp)
  addq $8, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size weir_switch_fiber, .-weir_switch_fiber
)");

namespace weir::emulated {

namespace {
constexpr size_t kGuardBytes = 4096;

std::byte* map_stack() {
  void* mapped = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED || mprotect(mapped, kGuardBytes, PROT_NONE) != 0) {
    std::perror("CUDA emulator: a fiber's stack");
    std::abort();
  }
  return static_cast<std::byte*>(mapped);
}
}  // namespace

std::byte* fiber_stack(int index) {
  thread_local std::vector<std::byte*> stacks;
  while (static_cast<int>(stacks.size()) <= index) stacks.push_back(map_stack());
  // Tops at different offsets in their pages: equal ones would all fall into the same sets of the cache.
  return stacks[static_cast<size_t>(index)] + kStackBytes - static_cast<size_t>(index % 21) * 192;
}

void* start_state(std::byte* stack_top, void (*entry)()) {
  uint64_t* top = reinterpret_cast<uint64_t*>(stack_top);
  *--top = 0;  // where a caller's return address would be
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = 0;
  unsigned control = 0;
  asm volatile("stmxcsr %0" : "=m"(control));
  *--top = control;
  return top;
}

}  // namespace weir::emulated
