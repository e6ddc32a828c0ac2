#include "device/cuda/emulated/block.h"

#include <cstring>

#include "device/cuda/emulated/barrier.h"
#include "device/cuda/emulated/fiber.h"

namespace weir::emulated {

constinit thread_local Thread* current = nullptr;
constinit thread_local Block* current_block = nullptr;

namespace {

constexpr int64_t kIdleYieldsPerThread = 20000;

void push_ready(Thread* thread) {
  Block& block = *current_block;
  thread->next = nullptr;
  thread->waits_for = nullptr;
  (block.last_ready ? block.last_ready->next : block.first_ready) = thread;
  block.last_ready = thread;
}

Thread* pop_ready() {
  Block& block = *current_block;
  Thread* thread = block.first_ready;
  if (thread) block.first_ready = thread->next;
  if (!block.first_ready) block.last_ready = nullptr;
  return thread;
}

// Runs the next ready thread; the scheduler when there is none.
void suspend() {
  Thread* self = current;
  Thread* next = pop_ready();
  if (next == self) return;
  current = next;
  weir_switch_fiber(&self->stack_pointer, next ? next->stack_pointer : current_block->scheduler);
}

void wait_as(const char* what) {
  current->waits_for = what;
  suspend();
}

// Runs the warp instruction whose last lane has arrived and wakes the others.
void run_instruction(Warp& warp, uint32_t mask, void (*instruction)(void* const*, uint32_t)) {
  void* operands[kWarpLanes] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (!(mask >> lane & 1)) continue;
    Thread& thread = *warp.lanes[lane];
    if ((thread.mask & warp.live) != mask || thread.instruction != instruction) {
      fail_kernel("the lanes of a warp meet in different instructions or with different masks");
    }
    operands[lane] = thread.operands;
  }
  instruction(operands, mask);
  warp.arrived &= ~mask;
  progress();
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((mask >> lane & 1) && warp.lanes[lane] != current) push_ready(warp.lanes[lane]);
  }
}

void release(Barrier& barrier) {
  barrier.result = barrier.sum;
  barrier.result_arrived = barrier.arrived;
  Thread* thread = barrier.waiting;
  barrier.waiting = nullptr;
  barrier.arrived = barrier.sum = 0;
  progress();
  Thread* in_order = nullptr;  // they were pushed at the front
  while (thread) {
    Thread* next = thread->next;
    thread->next = in_order;
    in_order = thread;
    thread = next;
  }
  while (in_order) {
    Thread* next = in_order->next;
    if (in_order != current) push_ready(in_order);
    in_order = next;
  }
}

bool complete(const Barrier& barrier) {
  return barrier.arrived == (barrier.expected ? barrier.expected : current_block->live);
}

Barrier& arrive(int index, int threads, int argument) {
  if (index < 0 || index >= kNamedBarriers) fail_kernel("a barrier's number must be 0 to 15");
  if (threads % kWarpLanes != 0) fail_kernel("a barrier's thread count must be a multiple of 32");
  Barrier& barrier = current_block->barriers[index];
  if (barrier.arrived && barrier.expected != threads) fail_kernel("a barrier is met with different thread counts");
  barrier.expected = threads;
  ++barrier.arrived;
  barrier.sum += argument;
  return barrier;
}

// A thread that has ended counts as arrived everywhere.
void leave() {
  Thread& self = *current;
  Block& block = *current_block;
  --block.live;
  self.warp->live &= ~(1u << self.lane);
  progress();
  Warp& warp = *self.warp;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (!(warp.arrived >> lane & 1)) continue;
    Thread& waiting = *warp.lanes[lane];
    const uint32_t mask = waiting.mask & warp.live;
    if ((warp.arrived & mask) == mask) run_instruction(warp, mask, waiting.instruction);
  }
  Barrier& all = block.barriers[0];
  if (all.arrived && all.expected == 0 && block.live && complete(all)) release(all);
}

void thread_entry() {
  (*current_block->body)();
  current->copies.wait_all();
  current->bulk_stores.wait_all();
  leave();
  suspend();
}

std::string describe_deadlock(const Block& block) {
  for (const Thread& thread : block.threads) {
    if (!thread.waits_for) continue;
    return "deadlock: " + std::to_string(block.live) + " threads wait, among them (" + std::to_string(thread.index.x) +
           ", " + std::to_string(thread.index.y) + ", " + std::to_string(thread.index.z) + ") for " + thread.waits_for;
  }
  return "deadlock";
}

void prepare(Block& block, bool descending) {
  const int count = static_cast<int>(block.block.x * block.block.y * block.block.z);
  block.threads.resize(static_cast<size_t>(count));
  block.warps.assign(static_cast<size_t>((count + kWarpLanes - 1) / kWarpLanes), {});
  for (Barrier& barrier : block.barriers) barrier = {};
  block.bulk_loads.clear();
  block.first_ready = block.last_ready = nullptr;
  block.live = count;
  block.idle_yields = 0;
  for (int i = 0; i < count; ++i) {
    Thread& thread = block.threads[static_cast<size_t>(i)];
    thread = {};
    const unsigned id = static_cast<unsigned>(i);
    thread.index = {id % block.block.x, id / block.block.x % block.block.y, id / (block.block.x * block.block.y)};
    thread.lane = i % kWarpLanes;
    thread.warp = &block.warps[static_cast<size_t>(i / kWarpLanes)];
    thread.warp->lanes[thread.lane] = &thread;
    thread.warp->live |= 1u << thread.lane;
    thread.stack_pointer = start_state(fiber_stack(i), thread_entry);
  }
  for (int i = 0; i < count; ++i) push_ready(&block.threads[static_cast<size_t>(descending ? count - 1 - i : i)]);
}

void run_block(Block& block, bool descending) {
  prepare(block, descending);
  current = pop_ready();
  weir_switch_fiber(&block.scheduler, current->stack_pointer);
  current = nullptr;
  if (block.failure.empty() && block.live > 0) block.failure = describe_deadlock(block);
}

}  // namespace

void Copy::run() const {
  if (source) {
    std::memcpy(destination, source, bytes);
  } else {
    std::memset(destination, 0, bytes);
  }
  if (barrier) barrier_complete_bytes(barrier, bytes);
}

void CopyGroups::wait(size_t may_be_pending) {
  const size_t committed = groups.size() - 1;
  if (committed <= may_be_pending) return;
  const size_t done = committed - may_be_pending;
  for (size_t i = 0; i < done; ++i) {
    for (const Copy& copy : groups[i]) copy.run();
  }
  groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(done));
}

void CopyGroups::wait_all() {
  for (const std::vector<Copy>& group : groups) {
    for (const Copy& copy : group) copy.run();
  }
  groups.assign(1, {});
}

void fail_kernel(const std::string& message) {
  Block& block = *current_block;
  block.failure = message + " (thread " + std::to_string(current->index.x) + ", " + std::to_string(current->index.y) +
                  ", " + std::to_string(current->index.z) + ")";
  void* abandoned = nullptr;
  weir_switch_fiber(&abandoned, block.scheduler);
  __builtin_unreachable();
}

void progress() { current_block->idle_yields = 0; }

void yield() {
  if (++current_block->idle_yields > kIdleYieldsPerThread * static_cast<int64_t>(current_block->threads.size())) {
    fail_kernel(
        "deadlock: a thread polls for what no other thread of its block will do (blocks run one after the other)");
  }
  push_ready(current);
  suspend();
}

void meet_warp(uint32_t mask, void* operands, void (*instruction)(void* const* lanes, uint32_t mask)) {
  Thread& self = *current;
  Warp& warp = *self.warp;
  if (!(mask >> self.lane & 1)) fail_kernel("a lane meets its warp with a mask that does not name it");
  self.mask = mask;
  self.operands = operands;
  self.instruction = instruction;
  warp.arrived |= 1u << self.lane;
  mask &= warp.live;
  if ((warp.arrived & mask) == mask) {
    run_instruction(warp, mask, instruction);
  } else {
    wait_as("the other lanes of a warp instruction");
  }
}

BarrierResult meet_block(int index, int threads, int argument) {
  Barrier& barrier = arrive(index, threads, argument);
  if (complete(barrier)) {
    release(barrier);
  } else {
    current->next = barrier.waiting;
    barrier.waiting = current;
    wait_as(index == 0 ? "the block's barrier" : "a named barrier");
  }
  return {barrier.result, barrier.result_arrived};
}

void arrive_block(int index, int threads) {
  Barrier& barrier = arrive(index, threads, 0);
  if (complete(barrier)) release(barrier);
}

std::byte* dynamic_shared() {
  alignas(1024) static thread_local std::byte memory[kSharedBytes];
  return memory;
}

std::string run_grid(dim3 grid, dim3 block_shape, size_t shared_bytes, const std::function<void()>& body) {
  static thread_local unsigned launches = 0;
  Block block;
  block.grid = grid;
  block.block = block_shape;
  block.body = &body;
  current_block = &block;
  unsigned parity = launches++;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block.index = {x, y, z};
        std::memset(dynamic_shared(), 0xff, shared_bytes);
        run_block(block, parity++ % 2 == 1);
        if (block.failure.empty()) continue;
        current_block = nullptr;
        return block.failure + " in block (" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) +
               ")";
      }
    }
  }
  current_block = nullptr;
  return {};
}

}  // namespace weir::emulated
