#include "device/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cassert>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weir {
namespace {

// Loops of a step follow each other within microseconds: spin that long before sleeping.
constexpr int kSpins = 20000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  assert(threads >= 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::drain(int thread) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    call_(context_, i, thread);
  }
}

void ThreadPool::run(int64_t count, Call call, void* context) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) call(context, i, 0);
    return;
  }
  call_ = call;
  context_ = context;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1);  // sequentially consistent: a worker that sleeps after this sees it, else we see it asleep
  if (asleep_.load() > 0) {
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  drain(0);
  for (int spin = 0; busy_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; generation_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin < kSpins) {
        relax();
        continue;
      }
      std::unique_lock lock(mutex_);
      asleep_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      asleep_.fetch_sub(1);
    }
    ++seen;
    if (stop_.load()) return;
    drain(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

int default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace weir
