#include "device/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cassert>
#include <system_error>

#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weir {
namespace {

// Loops of a step follow each other within microseconds: look for the next one that many times before sleeping.
constexpr int kSpins = 4000;

// Largest count of one ticket counter; the lower half needs room for the tickets beyond the count, one a worker.
constexpr int64_t kMaxCount = int64_t{1} << 31;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

bool has_work(uint64_t ticket) { return static_cast<uint32_t>(ticket) < static_cast<uint32_t>(ticket >> 32); }

}  // namespace

ThreadPool::ThreadPool(int threads) {
  assert(threads >= 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    stop();
    fail("--threads: cannot start thread ", workers_.size() + 2, " of ", threads, ": ", error.code().message());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::take_one(int thread) {
  if (!has_work(next_.load(std::memory_order_relaxed))) return false;
  const uint64_t ticket = next_.fetch_add(1, std::memory_order_acq_rel);
  if (!has_work(ticket)) return false;
  call_(context_, static_cast<int64_t>(static_cast<uint32_t>(ticket)), thread);
  const int64_t done = done_.fetch_add(1, std::memory_order_release) + 1;
  if (thread != 0 && done == static_cast<int64_t>(ticket >> 32)) done_.notify_one();
  return true;
}

void ThreadPool::run(int64_t count, Call call, void* context) {
  if (count <= 0) return;
  // Beyond a ticket's range (no real loop gets there) the caller does the work alone.
  if (workers_.empty() || count == 1 || count >= kMaxCount) {
    for (int64_t i = 0; i < count; ++i) call(context, i, 0);
    return;
  }
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  next_.store(static_cast<uint64_t>(count) << 32);  // sequentially consistent: a worker that sleeps after this sees it,
  if (asleep_.load() > 0) {                         // else we see it asleep
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  while (take_one(0)) {}
  // A worker that holds an index and has lost its processor needs ours: sleep rather than spin on.
  int spin = 0;
  for (int64_t done = done_.load(std::memory_order_acquire); done != count;
       done = done_.load(std::memory_order_acquire)) {
    if (++spin < kSpins) {
      relax();
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
}

void ThreadPool::work(int thread) {
  for (;;) {
    int spin = 0;
    while (spin < kSpins && !stop_.load(std::memory_order_relaxed)) {
      if (take_one(thread)) {
        spin = 0;
      } else {
        relax();
        ++spin;
      }
    }
    std::unique_lock lock(mutex_);
    asleep_.fetch_add(1);
    wake_.wait(lock, [&] { return stop_.load() || has_work(next_.load()); });
    asleep_.fetch_sub(1);
    if (stop_.load()) return;
  }
}

int default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace weir
