// A block of an emulated kernel: its threads are fibers of one OS thread, each of which runs until it must wait.
//
// A warp instruction (meet) runs once, for all lanes, when its last lane arrives. Copies that are asynchronous on a GPU
// are done as late as the program allows, so that a missing wait reads poison. Threads run in ascending order in one
// block and in descending order in the next, so that a missing barrier shows. The blocks of a cluster run together;
// such kernels have no static shared memory here, only dynamic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/cuda/emulated/types.h"

namespace weir::emulated {

inline constexpr int kWarpLanes = 32;
inline constexpr int kMaxThreads = 1024;
inline constexpr int kNamedBarriers = 16;
inline constexpr unsigned kMaxCluster = 16;  // blocks
inline constexpr size_t kSharedBytes = size_t{227} << 10;

// One asynchronous copy; source null fills with zeros.
struct Copy {
  void* destination = nullptr;
  const void* source = nullptr;
  size_t bytes = 0;
  uint64_t* barrier = nullptr;  // told of the bytes

  void run() const;
};
// Copies of a thread in groups: the last one is still open.
struct CopyGroups {
  std::vector<std::vector<Copy>> groups{1};

  void add(const Copy& copy) { groups.back().push_back(copy); }
  void commit() { groups.emplace_back(); }
  void wait(size_t may_be_pending);  // of the committed groups
  void wait_all();
};

struct Block;
struct Warp;
struct Thread {
  void* stack_pointer = nullptr;
  Thread* next = nullptr;  // in the queue it stands in
  Warp* warp = nullptr;
  Block* block = nullptr;
  uint3 index{};
  int lane = 0;
  const char* waits_for = nullptr;
  uint32_t mask = 0;  // of the warp instruction it waits in
  void* operands = nullptr;
  void (*instruction)(void* const* lanes, uint32_t mask) = nullptr;
  CopyGroups copies, bulk_stores;
  int cluster_phases = 0;  // of the cluster's barrier, that it has arrived for
};

struct Warp {
  Thread* lanes[kWarpLanes] = {};
  uint32_t live = 0, arrived = 0;
};

struct Barrier {
  Thread* waiting = nullptr;
  int arrived = 0;
  int expected = 0;  // 0: all live threads
  int sum = 0;       // of the arguments, of those that arrived
  int result = 0;    // of the generation before
  int result_arrived = 0;
};

struct Cluster;
struct Block {
  dim3 grid, block;
  uint3 index{};
  Cluster* cluster = nullptr;
  unsigned rank = 0;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Barrier barriers[kNamedBarriers];
  int live = 0;
};

// Blocks that run together, one where a launch names no clusters.
struct Cluster {
  std::vector<Block> blocks;
  std::vector<Copy> bulk_loads;
  Thread* first_ready = nullptr;
  Thread* last_ready = nullptr;
  void* scheduler = nullptr;  // its saved state
  const std::function<void()>* body = nullptr;
  int live = 0;                        // threads
  int arrived = 0, phases_passed = 0;  // at its barrier
  int64_t idle_yields = 0;
  std::string failure;
};

extern constinit thread_local Thread* current;
extern constinit thread_local Block* current_block;

// --- called on fibers -----------------------------------------------------------------------------------------------
[[noreturn]] void fail_kernel(const std::string& message);  // ends the kernel with cudaErrorLaunchFailure
void yield();                                               // for loops that wait for another thread
void progress();                                            // something happened that a yielding thread may wait for
void meet_warp(uint32_t mask, void* operands, void (*instruction)(void* const* lanes, uint32_t mask));
struct BarrierResult {
  int sum, threads;
};
BarrierResult meet_block(int barrier, int threads, int argument);  // threads 0: all that live
void arrive_block(int barrier, int threads);
void arrive_cluster();
void wait_cluster();                       // for the phase that this thread has arrived for last
std::byte* shared_of_rank(unsigned rank);  // dynamic shared memory of a block of the cluster

// Op has `static void run(Op* const* lanes, uint32_t mask)`: operands and results of the lanes in mask.
template <class Op>
void meet(uint32_t mask, Op& op) {
  meet_warp(mask, &op, [](void* const* raw, uint32_t live) {
    Op* lanes[kWarpLanes];
    for (int lane = 0; lane < kWarpLanes; ++lane) lanes[lane] = static_cast<Op*>(raw[lane]);
    Op::run(lanes, live);
  });
}

// --- called by a launch
// -----------------------------------------------------------------------------------------------
std::byte* dynamic_shared();

// Runs all blocks; the message of what went wrong, or an empty string.
// cluster: of so many consecutive blocks, a divisor of grid.x.
std::string run_grid(dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes, const std::function<void()>& body);

}  // namespace weir::emulated

#define threadIdx (::weir::emulated::current->index)
#define blockIdx (::weir::emulated::current_block->index)
#define blockDim (::weir::emulated::current_block->block)
#define gridDim (::weir::emulated::current_block->grid)
#define warpSize 32
