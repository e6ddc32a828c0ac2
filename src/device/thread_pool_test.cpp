#include "device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace weir {
namespace {

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 3, 64, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pool.parallel_for(count, [&](int64_t i, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        seen[static_cast<size_t>(i)].fetch_add(1);
      });
      for (const auto& n : seen) EXPECT_EQ(n.load(), 1);
    }
  }
}

// Loops in quick succession, whose counts differ: a worker that comes late must not run an index of a loop that is
// over.
TEST(ThreadPool, LoopsInARowDoNotMix) {
  ThreadPool pool(4);
  for (int64_t round = 0; round < 20000; ++round) {
    const int64_t count = 2 + round % 7;
    std::atomic<int64_t> sum{0};
    pool.parallel_for(count, [&, round](int64_t i, int) { sum.fetch_add(round * 10 + i); });
    ASSERT_EQ(sum.load(), count * round * 10 + count * (count - 1) / 2);
  }
}

TEST(ThreadPool, WorksAfterItsWorkersHaveGoneToSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> calls{0};
    pool.parallel_for(100, [&](int64_t, int) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), 100);
  }
}

TEST(ThreadPool, SecondThreadTakesPart) {
  ThreadPool pool(2);
  std::atomic<int> other{0};
  for (int round = 0; round < 200 && other.load() == 0; ++round) {
    pool.parallel_for(16, [&](int64_t, int thread) {
      if (thread != 0) other.fetch_add(1);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
  }
  EXPECT_GT(other.load(), 0);
}

}  // namespace
}  // namespace weir
