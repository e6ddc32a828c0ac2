#include "device/cuda/emulated/block.h"

#include <cstring>
#include <memory>

#include "device/cuda/emulated/barrier.h"
#include "device/cuda/emulated/fiber.h"

namespace weir::emulated {

constinit thread_local Thread* current = nullptr;
constinit thread_local Block* current_block = nullptr;

namespace {

constexpr int64_t kIdleYieldsPerThread = 20000;

void push_ready(Thread* thread) {
  Cluster& cluster = *current_block->cluster;
  thread->next = nullptr;
  thread->waits_for = nullptr;
  (cluster.last_ready ? cluster.last_ready->next : cluster.first_ready) = thread;
  cluster.last_ready = thread;
}

Thread* pop_ready() {
  Cluster& cluster = *current_block->cluster;
  Thread* thread = cluster.first_ready;
  if (thread) cluster.first_ready = thread->next;
  if (!cluster.first_ready) cluster.last_ready = nullptr;
  return thread;
}

// Runs the next ready thread; the scheduler when there is none.
void suspend() {
  Thread* self = current;
  Thread* next = pop_ready();
  if (next == self) return;
  current = next;
  if (next) current_block = next->block;
  weir_switch_fiber(&self->stack_pointer, next ? next->stack_pointer : current_block->cluster->scheduler);
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

void pass_cluster_if_complete(Cluster& cluster) {
  if (cluster.arrived < cluster.live) return;
  cluster.arrived = 0;
  ++cluster.phases_passed;
  progress();
}

// A thread that has ended counts as arrived everywhere.
void leave() {
  Thread& self = *current;
  Block& block = *current_block;
  Cluster& cluster = *block.cluster;
  --block.live;
  --cluster.live;
  if (self.cluster_phases > cluster.phases_passed) --cluster.arrived;
  if (cluster.arrived > 0) pass_cluster_if_complete(cluster);
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
  (*current_block->cluster->body)();
  current->copies.wait_all();
  current->bulk_stores.wait_all();
  leave();
  suspend();
}

std::string in_block(const Block& block) {
  return " in block (" + std::to_string(block.index.x) + ", " + std::to_string(block.index.y) + ", " +
         std::to_string(block.index.z) + ")";
}

std::string describe_deadlock(const Cluster& cluster) {
  for (const Block& block : cluster.blocks) {
    for (const Thread& thread : block.threads) {
      if (!thread.waits_for) continue;
      return "deadlock: " + std::to_string(cluster.live) + " threads wait, among them (" +
             std::to_string(thread.index.x) + ", " + std::to_string(thread.index.y) + ", " +
             std::to_string(thread.index.z) + ") for " + thread.waits_for + in_block(block);
    }
  }
  return "deadlock";
}

void prepare(Block& block, bool descending) {
  const int count = static_cast<int>(block.block.x * block.block.y * block.block.z);
  block.threads.resize(static_cast<size_t>(count));
  block.warps.assign(static_cast<size_t>((count + kWarpLanes - 1) / kWarpLanes), {});
  for (Barrier& barrier : block.barriers) barrier = {};
  block.live = count;
  block.cluster->live += count;
  const int first_stack = static_cast<int>(block.rank) * count;
  for (int i = 0; i < count; ++i) {
    Thread& thread = block.threads[static_cast<size_t>(i)];
    thread = {};
    const unsigned id = static_cast<unsigned>(i);
    thread.index = {id % block.block.x, id / block.block.x % block.block.y, id / (block.block.x * block.block.y)};
    thread.lane = i % kWarpLanes;
    thread.block = &block;
    thread.warp = &block.warps[static_cast<size_t>(i / kWarpLanes)];
    thread.warp->lanes[thread.lane] = &thread;
    thread.warp->live |= 1u << thread.lane;
    thread.stack_pointer = start_state(fiber_stack(first_stack + i), thread_entry);
  }
  for (int i = 0; i < count; ++i) push_ready(&block.threads[static_cast<size_t>(descending ? count - 1 - i : i)]);
}

void run_cluster(Cluster& cluster, bool descending) {
  cluster.bulk_loads.clear();
  cluster.first_ready = cluster.last_ready = nullptr;
  cluster.live = cluster.arrived = cluster.phases_passed = 0;
  cluster.idle_yields = 0;
  current_block = cluster.blocks.data();
  const size_t count = cluster.blocks.size();
  for (size_t b = 0; b < count; ++b) prepare(cluster.blocks[descending ? count - 1 - b : b], descending);
  current = pop_ready();
  current_block = current->block;
  weir_switch_fiber(&cluster.scheduler, current->stack_pointer);
  current = nullptr;
  if (cluster.failure.empty() && cluster.live > 0) cluster.failure = describe_deadlock(cluster);
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
  const Block& block = *current_block;
  Cluster& cluster = *block.cluster;
  cluster.failure = message + " (thread " + std::to_string(current->index.x) + ", " + std::to_string(current->index.y) +
                    ", " + std::to_string(current->index.z) + ")" + in_block(block);
  void* abandoned = nullptr;
  weir_switch_fiber(&abandoned, cluster.scheduler);
  __builtin_unreachable();
}

void progress() { current_block->cluster->idle_yields = 0; }

void yield() {
  Cluster& cluster = *current_block->cluster;
  const auto threads = static_cast<int64_t>(current_block->threads.size() * cluster.blocks.size());
  if (++cluster.idle_yields > kIdleYieldsPerThread * threads) {
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

void arrive_cluster() {
  Cluster& cluster = *current_block->cluster;
  if (current->cluster_phases++ > cluster.phases_passed) {
    fail_kernel("a thread arrives at the cluster's barrier twice without waiting");
  }
  ++cluster.arrived;
  pass_cluster_if_complete(cluster);
}

void wait_cluster() {
  while (current_block->cluster->phases_passed < current->cluster_phases) yield();
}

std::byte* shared_of_rank(unsigned rank) {
  struct alignas(1024) Memory {
    std::byte bytes[kSharedBytes];
  };
  static thread_local std::vector<std::unique_ptr<Memory>> memories;
  const Cluster& cluster = *current_block->cluster;
  if (rank >= cluster.blocks.size()) fail_kernel("a rank is not of the cluster");
  if (current != nullptr && cluster.blocks[rank].live == 0) {
    fail_kernel("shared memory is used of a block of the cluster that has ended");
  }
  if (memories.size() <= rank) memories.resize(rank + 1);
  if (memories[rank] == nullptr) memories[rank] = std::make_unique<Memory>();
  return memories[rank]->bytes;
}

std::byte* dynamic_shared() { return shared_of_rank(current_block->rank); }

std::string run_grid(dim3 grid, dim3 block_shape, unsigned cluster_blocks, size_t shared_bytes,
                     const std::function<void()>& body) {
  static thread_local unsigned launches = 0;
  Cluster cluster;
  cluster.blocks.resize(cluster_blocks);
  cluster.body = &body;
  unsigned parity = launches++;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += cluster_blocks) {
        for (unsigned rank = 0; rank < cluster_blocks; ++rank) {
          Block& block = cluster.blocks[rank];
          block.grid = grid;
          block.block = block_shape;
          block.index = {x + rank, y, z};
          block.cluster = &cluster;
          block.rank = rank;
          current_block = &block;
          std::memset(dynamic_shared(), 0xff, shared_bytes);
        }
        run_cluster(cluster, parity++ % 2 == 1);
        current_block = nullptr;
        if (!cluster.failure.empty()) return cluster.failure;
      }
    }
  }
  return {};
}

}  // namespace weir::emulated
