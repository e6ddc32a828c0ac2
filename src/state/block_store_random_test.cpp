// Random operations: against a model that is plain enough to be right, and with a writer that lags behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <random>

#include "state/block_store.h"
#include "state/block_store_testing.h"

namespace weir {
namespace {

constexpr int64_t kHeader = 88;  // of a file with one part

// The store as it should be, in plain words, for 10,000 random operations.
class Model {
 public:
  struct Copy {
    uint64_t key = 0;
    size_t size = 0;
    uint64_t variant = 0;
    bool operator==(const Copy&) const = default;
  };
  int64_t host_budget = 0;
  int64_t disk_budget = 0;
  std::deque<Copy> host, disk;  // oldest first
  int64_t evicted_host = 0, evicted_disk = 0, hits_host = 0, hits_disk = 0, misses = 0, written = 0, refused = 0;

  static int64_t file(size_t size) { return kHeader + static_cast<int64_t>(size); }
  int64_t host_bytes() const {
    int64_t sum = 0;
    for (const Copy& copy : host) sum += static_cast<int64_t>(copy.size);
    return sum;
  }
  int64_t disk_bytes() const {
    int64_t sum = 0;
    for (const Copy& copy : disk) sum += file(copy.size);
    return sum;
  }
  const Copy* find(const std::deque<Copy>& tier, uint64_t key) const {
    for (const Copy& copy : tier) {
      if (copy.key == key) return &copy;
    }
    return nullptr;
  }
  const Copy* find(uint64_t key) const {
    const Copy* copy = find(host, key);
    return copy != nullptr ? copy : find(disk, key);
  }
  void touch(std::deque<Copy>& tier, uint64_t key) {
    const auto found = std::find_if(tier.begin(), tier.end(), [&](const Copy& copy) { return copy.key == key; });
    if (found == tier.end()) return;
    const Copy copy = *found;
    tier.erase(found);
    tier.push_back(copy);
  }
  void erase(uint64_t key) {
    std::erase_if(host, [&](const Copy& copy) { return copy.key == key; });
    std::erase_if(disk, [&](const Copy& copy) { return copy.key == key; });
  }
  void keep_in_host(const Copy& copy) {
    if (static_cast<int64_t>(copy.size) > host_budget) return;
    while (host_bytes() + static_cast<int64_t>(copy.size) > host_budget) {
      host.pop_front();
      ++evicted_host;
    }
    host.push_back(copy);
  }
  void put(const Copy& copy) {
    const Copy* known = find(copy.key);
    if (known != nullptr && *known != copy) erase(copy.key);
    touch(host, copy.key);
    touch(disk, copy.key);
    if (find(host, copy.key) == nullptr) keep_in_host(copy);
    if (find(disk, copy.key) == nullptr && file(copy.size) <= disk_budget) {
      while (disk_bytes() + file(copy.size) > disk_budget) {
        disk.pop_front();
        ++evicted_disk;
      }
      disk.push_back(copy);
      ++written;
    }
    if (find(copy.key) == nullptr) ++refused;
  }
  bool get(uint64_t key, size_t size) {
    const Copy* known = find(key);
    if (known == nullptr || known->size != size) {
      ++misses;
      return false;
    }
    const Copy copy = *known;
    const bool in_host = find(host, key) != nullptr;
    ++(in_host ? hits_host : hits_disk);
    touch(host, key);
    touch(disk, key);
    if (!in_host) keep_in_host(copy);
    return true;
  }
};

TEST(BlockStore, TenThousandRandomOperationsGoAsTheModelSays) {
  TemporaryFolder folder;
  std::mt19937 random(5);
  Model model;
  std::optional<BlockStore> store;
  int restarts = 0;
  const auto restart = [&] {
    static constexpr std::array<int64_t, 4> kHost = {0, 700, 2500, 5000};
    static constexpr std::array<int64_t, 4> kDisk = {900, 4000, 8000, 20000};
    store.reset();
    model = {.host_budget = kHost[random() % 4], .disk_budget = kDisk[random() % 4], .disk = model.disk};
    while (model.disk_bytes() > model.disk_budget) {
      model.disk.pop_front();
      ++model.evicted_disk;
    }
    store.emplace(BlockStore::Options{
        .host_bytes = model.host_budget, .directory = folder.path(), .disk_bytes = model.disk_budget});
    ++restarts;
  };
  restart();
  int64_t hits_disk = 0;
  for (int step = 0; step < 10000; ++step) {
    const uint64_t number = random() % 40;
    const StoreKey key = key_of(number);
    const size_t size = 1 + number * number % 1000;  // of its own, mostly
    const uint32_t what = random() % 1000;
    if (what == 0) {
      hits_disk += store->counters().hits_disk;
      restart();
    } else if (what < 450) {
      const Model::Copy copy = {number, what < 20 ? size + 1 : size, what < 40 ? 1u : 0u};
      put(*store, key, block_of(key, {copy.size}, copy.variant));
      store->flush();
      model.put(copy);
    } else if (what < 950) {
      const Model::Copy* known = model.find(number);
      const uint64_t variant = known == nullptr ? 0 : known->variant;
      const std::optional<BlockBytes> block = get(*store, key, {size});
      ASSERT_EQ(block.has_value(), model.get(number, size)) << "step " << step;
      if (block) {
        ASSERT_EQ(*block, block_of(key, {size}, variant)) << "step " << step;
      }
    } else {
      store->erase(key);
      store->flush();
      model.erase(number);
    }
    const Model::Copy* known = model.find(number);
    ASSERT_EQ(store->bytes(key), known == nullptr ? -1 : static_cast<int64_t>(known->size)) << "step " << step;
    const BlockStore::Counters counters = store->counters();
    ASSERT_EQ(counters.bytes_host, model.host_bytes()) << "step " << step;
    ASSERT_EQ(counters.blocks_host, static_cast<int64_t>(model.host.size()));
    ASSERT_EQ(counters.bytes_disk, model.disk_bytes()) << "step " << step;
    ASSERT_EQ(counters.blocks_disk, static_cast<int64_t>(model.disk.size()));
    ASSERT_EQ(counters.evicted_host, model.evicted_host) << "step " << step;
    ASSERT_EQ(counters.evicted_disk, model.evicted_disk) << "step " << step;
    ASSERT_EQ(counters.hits_host, model.hits_host) << "step " << step;
    ASSERT_EQ(counters.hits_disk, model.hits_disk) << "step " << step;
    ASSERT_EQ(counters.misses, model.misses) << "step " << step;
    ASSERT_EQ(counters.written, model.written) << "step " << step;
    ASSERT_EQ(counters.refused, model.refused) << "step " << step;
    ASSERT_EQ(counters.dropped_damaged + counters.dropped_foreign + counters.failed_reads, 0);
    if (step % 100 == 0) {
      ASSERT_EQ(use_of(folder.path()).bytes, model.disk_bytes()) << "step " << step;
    }
  }
  EXPECT_GT(restarts, 3);
  EXPECT_GT(hits_disk, 100);
}

// Puts, gets and erasures race with the writer, which the other tests wait for: run under ThreadSanitizer too.
TEST(BlockStore, TheWriterMayLagBehind) {
  TemporaryFolder folder;
  BlockStore store({.host_bytes = 3000, .directory = folder.path(), .disk_bytes = 20000, .queue_bytes = 4000});
  std::mt19937 random(6);
  int64_t hits = 0;
  for (int step = 0; step < 20000; ++step) {
    const uint64_t number = random() % 60;
    const StoreKey key = key_of(number);
    const std::vector<size_t> sizes = {1 + number * number % 1000};
    if (random() % 50 == 0) {
      store.erase(key);
    } else if (random() % 2 == 0) {
      put(store, key, block_of(key, sizes));
    } else if (const std::optional<BlockBytes> block = get(store, key, sizes)) {
      ASSERT_EQ(*block, block_of(key, sizes));
      ++hits;
    }
    ASSERT_LE(store.counters().bytes_host, 3000);
    ASSERT_LE(store.counters().bytes_disk, 20000);
  }
  store.flush();
  const BlockStore::Counters counters = store.counters();
  EXPECT_GT(hits, 1000);
  EXPECT_EQ(counters.hits_host + counters.hits_disk, hits);
  EXPECT_EQ(counters.bytes_queued, 0);
  EXPECT_EQ(counters.dropped_damaged, 0);
  EXPECT_EQ(counters.failed_reads + counters.failed_writes + counters.failed_removals, 0);
  EXPECT_EQ(counters.bytes_disk, use_of(folder.path()).bytes);
}

}  // namespace
}  // namespace weir
