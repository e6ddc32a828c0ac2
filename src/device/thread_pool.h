// A fixed set of threads that run one parallel loop at a time. The caller takes part, so `threads == 1` starts none.
// Which thread runs which index is not defined; results must not depend on it (and by row purity never do).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace weir {

class ThreadPool {
 public:
  // threads >= 1; Error when the system gives no more threads
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(index, thread) for every index in [0, count), thread in [0, threads()). Returns when all are done.
  // The body must not throw. Allocates nothing.
  template <class Body>
  void parallel_for(int64_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count, [](void* context, int64_t index, int thread) { (*static_cast<Plain*>(context))(index, thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, int64_t index, int thread);
  void run(int64_t count, Call call, void* context);
  void work(int thread);
  bool take_one(int thread);
  void stop();

  std::vector<std::thread> workers_;
  Call call_ = nullptr;  // of the loop that runs; stable while it has unfinished indices
  void* context_ = nullptr;
  // The loop's count in the upper half, the next index in the lower: a ticket says by itself whether it is good, so a
  // worker that comes late can't mistake one loop for another, and the caller waits for indices, never for workers.
  alignas(64) std::atomic<uint64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<int> asleep_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Threads to use when the user names none: the processors this process may run on.
int default_threads();

}  // namespace weir
