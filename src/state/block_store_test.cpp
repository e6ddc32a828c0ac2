#include "state/block_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "state/block_store_testing.h"

namespace weir {
namespace {

constexpr int64_t kHeader = 88;  // of a file with one part

// A write that waits at a gate, to hold the writer thread in the middle of a file.
class Gate {
 public:
  BlockFiles::Calls calls() {
    return {[this](int file, std::span<const std::byte> bytes) {
              std::unique_lock lock(mutex_);
              ++waiting_;
              changed_.notify_all();
              changed_.wait(lock, [&] { return open_; });
              --waiting_;
              return ::write(file, bytes.data(), bytes.size());
            },
            {}};
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void await_writer() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

TEST(BlockStore, PartsComeBackFromHostMemory) {
  BlockStore store({.host_bytes = 2000});
  const StoreKey key = key_of(1);
  const std::vector<size_t> sizes = {10, 0, 5, 1000};
  EXPECT_FALSE(get(store, key, sizes));
  EXPECT_EQ(store.bytes(key), -1);
  put(store, key, block_of(key, sizes));
  EXPECT_EQ(store.bytes(key), 1015);
  EXPECT_TRUE(store.contains(key));
  EXPECT_EQ(get(store, key, sizes), block_of(key, sizes));
  EXPECT_FALSE(get(store, key, {10, 5, 1000})) << "other parts";
  EXPECT_FALSE(get(store, key, {15, 0, 0, 1000})) << "the same sum";
  EXPECT_FALSE(get(store, key_of(2), sizes));
  EXPECT_EQ(get(store, key, sizes), block_of(key, sizes)) << "asking wrongly drops nothing";
  const BlockStore::Counters counters = store.counters();
  EXPECT_EQ(counters.hits_host, 2);
  EXPECT_EQ(counters.misses, 4);
  EXPECT_EQ(counters.stored, 1);
  EXPECT_EQ(counters.dropped_damaged, 0);
  EXPECT_EQ(counters.bytes_host, 1015);
  store.flush();  // nothing to wait for
}

TEST(BlockStore, HostMemoryKeepsTheLastUsedWithinItsBudget) {
  BlockStore store({.host_bytes = 300});
  for (const uint64_t n : {1, 2, 3}) put(store, key_of(n), block_of(key_of(n), {100}));
  EXPECT_EQ(store.counters().bytes_host, 300);
  EXPECT_EQ(store.counters().evicted_host, 0) << "exactly full";
  EXPECT_TRUE(get(store, key_of(1), {100}));
  put(store, key_of(4), block_of(key_of(4), {100}));
  EXPECT_FALSE(store.contains(key_of(2)));
  put(store, key_of(3), block_of(key_of(3), {100}));  // counts as a use
  put(store, key_of(5), block_of(key_of(5), {101}));  // takes two
  EXPECT_FALSE(store.contains(key_of(1)));
  EXPECT_FALSE(store.contains(key_of(4)));
  EXPECT_TRUE(store.contains(key_of(3)));
  put(store, key_of(6), block_of(key_of(6), {301}));
  EXPECT_FALSE(store.contains(key_of(6)));
  EXPECT_TRUE(store.contains(key_of(5))) << "what cannot fit evicts nothing";
  put(store, key_of(7), block_of(key_of(7), {300}));
  const BlockStore::Counters counters = store.counters();
  EXPECT_EQ(counters.blocks_host, 1);
  EXPECT_EQ(counters.bytes_host, 300);
  EXPECT_EQ(counters.evicted_host, 5);
  EXPECT_EQ(counters.refused, 1);
}

TEST(BlockStore, NoBytesAndTooManyPartsAreRefused) {
  TemporaryFolder folder;
  BlockStore store({.host_bytes = 1 << 20, .directory = folder.path(), .disk_bytes = 1 << 20});
  put(store, key_of(1), {});
  put(store, key_of(2), {{}, {}});
  put(store, key_of(3), BlockBytes(BlockFiles::kMaxParts + 1, std::vector<std::byte>(1)));
  store.flush();
  EXPECT_EQ(store.counters().refused, 3);
  EXPECT_EQ(store.counters().blocks_host + store.counters().blocks_disk, 0);
  put(store, key_of(4), BlockBytes(BlockFiles::kMaxParts, std::vector<std::byte>(1)));
  store.flush();
  EXPECT_EQ(store.counters().blocks_disk, 1);
  EXPECT_TRUE(get(store, key_of(4), std::vector<size_t>(BlockFiles::kMaxParts, 1)));
}

TEST(BlockStore, FilesServeWhatHostMemoryLostAndWhatARestartLost) {
  TemporaryFolder folder;
  const BlockStore::Options options = {.host_bytes = 150, .directory = folder.path() / "a" / "b", .disk_bytes = 5000};
  {
    BlockStore store(options);
    for (const uint64_t n : {1, 2, 3}) put(store, key_of(n), block_of(key_of(n), {60, 40}));
    store.flush();
    EXPECT_EQ(store.counters().written, 3);
    EXPECT_EQ(store.counters().bytes_host, 100);
    EXPECT_EQ(store.counters().bytes_disk, use_of(options.directory).bytes);
    EXPECT_EQ(get(store, key_of(1), {60, 40}), block_of(key_of(1), {60, 40}));
    EXPECT_EQ(store.counters().hits_disk, 1);
    EXPECT_EQ(get(store, key_of(1), {60, 40}), block_of(key_of(1), {60, 40}));
    EXPECT_EQ(store.counters().hits_host, 1) << "what came from the disk stays in host memory";
    put(store, key_of(2), block_of(key_of(2), {60, 40}));
    store.flush();
    EXPECT_EQ(store.counters().written, 3) << "what has a file is not written again";
  }
  BlockStore store(options);
  EXPECT_EQ(store.counters().blocks_disk, 3);
  EXPECT_EQ(store.counters().bytes_disk, use_of(options.directory).bytes);
  for (const uint64_t n : {1, 2, 3}) {
    EXPECT_EQ(store.bytes(key_of(n)), 100);
    EXPECT_FALSE(get(store, key_of(n), {40, 60}));
    EXPECT_EQ(get(store, key_of(n), {60, 40}), block_of(key_of(n), {60, 40}));
  }
  EXPECT_EQ(store.counters().hits_disk, 3);
}

TEST(BlockStore, TheDiskKeepsTheLastUsedAcrossRestarts) {
  TemporaryFolder folder;
  const int64_t file = kHeader + 100;
  BlockStore::Options options = {.host_bytes = 200, .directory = folder.path(), .disk_bytes = 4 * file + file - 1};
  {
    BlockStore store(options);
    for (const uint64_t n : {1, 2, 3, 4}) {
      put(store, key_of(n), block_of(key_of(n), {100}));
      store.flush();
    }
    EXPECT_EQ(store.counters().evicted_disk, 0);
    EXPECT_TRUE(get(store, key_of(3), {100}));
    EXPECT_EQ(store.counters().hits_host, 1) << "a hit in host memory is a use of the file";
    EXPECT_TRUE(get(store, key_of(1), {100}));
    EXPECT_EQ(store.counters().hits_disk, 1);
    EXPECT_TRUE(get(store, key_of(1), {100}));
    put(store, key_of(5), block_of(key_of(5), {100}));
    store.flush();
    EXPECT_FALSE(store.contains(key_of(2)));
    EXPECT_EQ(store.counters().evicted_disk, 1);
    EXPECT_EQ(store.counters().bytes_disk, 4 * file);
    EXPECT_EQ(use_of(folder.path()).bytes, 4 * file);
  }  // order of use now: 4, 3, 1, 5
  options.disk_bytes = 3 * file;
  {
    BlockStore store(options);
    EXPECT_EQ(store.counters().evicted_disk, 1);
    EXPECT_FALSE(store.contains(key_of(4)));
    EXPECT_TRUE(store.contains(key_of(3)));
    put(store, key_of(6), block_of(key_of(6), {100}));
    store.flush();
    EXPECT_FALSE(store.contains(key_of(3)));
    EXPECT_TRUE(store.contains(key_of(1)));
  }
  options.host_bytes = 100;
  options.disk_bytes = file;
  {
    BlockStore store(options);
    EXPECT_TRUE(store.contains(key_of(6)));
    EXPECT_EQ(store.counters().bytes_disk, file);
    put(store, key_of(7), block_of(key_of(7), {101}));  // a file too large for the budget
    store.flush();
    EXPECT_TRUE(store.contains(key_of(6)));
    EXPECT_FALSE(store.contains(key_of(7)));
    EXPECT_EQ(store.counters().refused, 1);
  }
  options.disk_bytes = 0;
  BlockStore store(options);
  EXPECT_EQ(use_of(folder.path()).blocks, 0);
}

TEST(BlockStore, OtherBytesUnderAKeyReplaceTheFirst) {
  TemporaryFolder folder;
  const BlockStore::Options options = {.host_bytes = 1000, .directory = folder.path(), .disk_bytes = 10000};
  const StoreKey key = key_of(1);
  {
    BlockStore store(options);
    put(store, key, block_of(key, {100}, 1));
    store.flush();
    put(store, key, block_of(key, {100}, 2));
    EXPECT_EQ(get(store, key, {100}), block_of(key, {100}, 2));
    store.flush();
    EXPECT_EQ(store.counters().bytes_host, 100);
    EXPECT_EQ(store.counters().bytes_disk, kHeader + 100);
    put(store, key, block_of(key, {50}, 3));
    put(store, key, block_of(key, {60}, 4));
    EXPECT_EQ(store.bytes(key), 60);
    store.flush();
  }
  BlockStore store(options);
  EXPECT_EQ(get(store, key, {60}), block_of(key, {60}, 4));
  EXPECT_EQ(use_of(folder.path()).bytes, kHeader + 60);
}

TEST(BlockStore, APutNeverWaitsForTheDisk) {
  TemporaryFolder folder;
  Gate gate;
  BlockStore store({.directory = folder.path(), .disk_bytes = 10000, .queue_bytes = 250, .calls = gate.calls()});
  put(store, key_of(1), block_of(key_of(1), {100}));
  gate.await_writer();
  put(store, key_of(2), block_of(key_of(2), {150}));
  EXPECT_EQ(store.counters().bytes_queued, 250);
  put(store, key_of(3), block_of(key_of(3), {1}));
  EXPECT_EQ(store.counters().dropped_writes, 1);
  EXPECT_FALSE(store.contains(key_of(3)));
  for (const uint64_t n : {1, 2}) {
    const std::vector<size_t> sizes = {n == 1 ? size_t{100} : size_t{150}};
    EXPECT_EQ(get(store, key_of(n), sizes), block_of(key_of(n), sizes)) << "served while it waits";
  }
  EXPECT_EQ(store.counters().written, 0);
  gate.open();
  store.flush();
  EXPECT_EQ(store.counters().written, 2);
  EXPECT_EQ(store.counters().bytes_queued, 0);
  put(store, key_of(3), block_of(key_of(3), {1000}));  // one block may always wait
  store.flush();
  EXPECT_EQ(store.counters().blocks_disk, 3);
}

TEST(BlockStore, EraseTakesEveryCopyAlsoOneThatIsBeingWritten) {
  TemporaryFolder folder;
  const BlockStore::Options options = {.host_bytes = 1000, .directory = folder.path(), .disk_bytes = 10000};
  const StoreKey key = key_of(1);
  {
    BlockStore store(options);
    put(store, key, block_of(key, {100}));
    store.flush();
    store.erase(key);
    EXPECT_FALSE(store.contains(key));
    EXPECT_FALSE(get(store, key, {100}));
    store.flush();
    EXPECT_EQ(use_of(folder.path()).blocks, 0);
    store.erase(key_of(2));
  }
  Gate gate;
  BlockStore::Options gated = options;
  gated.calls = gate.calls();
  BlockStore store(gated);
  put(store, key, block_of(key, {100}, 1));
  gate.await_writer();
  store.erase(key);
  EXPECT_EQ(store.counters().bytes_queued, 0);
  gate.open();
  store.flush();
  EXPECT_EQ(store.counters().written, 1);
  EXPECT_EQ(store.counters().blocks_disk, 0);
  EXPECT_EQ(use_of(folder.path()).blocks, 0);
}

TEST(BlockStore, ABlockPutAgainWhileItIsErasedIsKept) {
  TemporaryFolder folder;
  Gate gate;
  BlockStore store({.directory = folder.path(), .disk_bytes = 10000, .calls = gate.calls()});
  const StoreKey key = key_of(1);
  put(store, key, block_of(key, {100}, 1));
  gate.await_writer();
  put(store, key, block_of(key, {100}, 2));
  store.erase(key);
  put(store, key, block_of(key, {100}, 3));
  gate.open();
  store.flush();
  EXPECT_EQ(get(store, key, {100}), block_of(key, {100}, 3));
  EXPECT_EQ(store.counters().hits_disk, 1);
  EXPECT_EQ(store.counters().written, 2);
  EXPECT_EQ(store.counters().bytes_disk, use_of(folder.path()).bytes);
}

TEST(BlockStore, TheDestructorDropsWritesThatWaitAndKeepsRemovals) {
  TemporaryFolder folder;
  Gate gate;
  auto store = std::make_unique<BlockStore>(
      BlockStore::Options{.host_bytes = 1000, .directory = folder.path(), .disk_bytes = 10000, .calls = gate.calls()});
  for (const uint64_t n : {1, 2, 3}) put(*store, key_of(n), block_of(key_of(n), {100}));
  gate.await_writer();
  store->erase(key_of(1));
  std::thread opener([&gate, ending = store.get()] {
    while (!BlockStoreTesting::stopping(*ending)) std::this_thread::yield();
    gate.open();
  });
  store.reset();
  opener.join();
  EXPECT_EQ(use_of(folder.path()).blocks, 0);
  EXPECT_EQ(use_of(folder.path()).temporaries, 0);
}

TEST(BlockStore, ABitFlippedInHostMemoryIsNoticed) {
  TemporaryFolder folder;
  const std::vector<size_t> sizes = {30, 70};
  for (const bool files : {false, true}) {
    BlockStore::Options options = {.host_bytes = 1000};
    if (files) {
      options.directory = folder.path();
      options.disk_bytes = 10000;
    }
    BlockStore store(options);
    const StoreKey key = key_of(1);
    put(store, key, block_of(key, sizes));
    store.flush();
    BlockStoreTesting::host_payload(store, key)[99] ^= std::byte{0x10};
    const std::optional<BlockBytes> block = get(store, key, sizes);
    EXPECT_EQ(block.has_value(), files);
    if (files) {
      EXPECT_EQ(*block, block_of(key, sizes)) << "the file is whole";
    }
    const BlockStore::Counters counters = store.counters();
    EXPECT_EQ(counters.dropped_damaged, 1);
    EXPECT_EQ(counters.hits_host, 0);
    EXPECT_EQ(counters.hits_disk, files ? 1 : 0);
    EXPECT_EQ(counters.misses, files ? 0 : 1);
    EXPECT_EQ(store.contains(key), files);
    EXPECT_EQ(counters.bytes_host, files ? 100 : 0);
  }
}

TEST(BlockStore, FailingWritesAreCountedAndWarnedOfOnce) {
  TemporaryFolder folder;
  std::atomic<int> failing = EIO;
  std::vector<std::string> warnings;
  BlockStore store({.host_bytes = 100,
                    .directory = folder.path(),
                    .disk_bytes = 10000,
                    .warn = [&](std::string_view line) { warnings.emplace_back(line); },
                    .calls = {[&](int file, std::span<const std::byte> bytes) -> ssize_t {
                                if (failing == 0) return ::write(file, bytes.data(), 1);  // a byte at a time
                                errno = failing;
                                return -1;
                              },
                              {}}});
  for (const int error : {EIO, ENOSPC, EDQUOT, EROFS}) {
    failing = error;
    put(store, key_of(static_cast<uint64_t>(error)), block_of(key_of(1), {100}));
    store.flush();
  }
  EXPECT_EQ(store.counters().failed_writes, 4);
  EXPECT_EQ(store.counters().written, 0);
  EXPECT_EQ(store.counters().bytes_disk, 0);
  EXPECT_EQ(store.counters().bytes_queued, 0);
  EXPECT_EQ(store.counters().blocks_host, 1) << "host memory goes on";
  EXPECT_EQ(use_of(folder.path()).temporaries, 0);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("cannot write"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find(folder.path().string()), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("Input/output error"), std::string::npos) << warnings[0];

  failing = 0;
  put(store, key_of(7), block_of(key_of(7), {100}));
  put(store, key_of(8), block_of(key_of(8), {100}));
  store.flush();
  EXPECT_EQ(get(store, key_of(7), {100}), block_of(key_of(7), {100}));
  EXPECT_EQ(store.counters().hits_disk, 1) << "the disk works again";
}

TEST(BlockStore, AFailingReadIsAMiss) {
  TemporaryFolder folder;
  int failing = 0;
  int calls = 0;
  int warnings = 0;
  BlockStore store({.directory = folder.path(),
                    .disk_bytes = 10000,
                    .warn = [&](std::string_view) { ++warnings; },
                    .calls = {{}, [&](int file, std::span<std::byte> bytes) -> ssize_t {
                                if (++calls != failing)
                                  return ::read(file, bytes.data(), std::min<size_t>(bytes.size(), 33));
                                errno = EIO;
                                return -1;
                              }}});
  const StoreKey key = key_of(1);
  for (failing = 0; failing < 6; ++failing) {  // header, sizes, parts
    put(store, key, block_of(key, {20, 80}));
    store.flush();
    EXPECT_EQ(store.counters().blocks_disk, 1);
    calls = 0;
    const std::optional<BlockBytes> block = get(store, key, {20, 80});
    EXPECT_EQ(block.has_value(), failing == 0);
    if (failing == 0) {
      EXPECT_EQ(*block, block_of(key, {20, 80})) << "short reads";
    }
    store.flush();
    EXPECT_EQ(use_of(folder.path()).blocks, failing == 0 ? 1 : 0);
  }
  EXPECT_EQ(store.counters().failed_reads, 5);
  EXPECT_EQ(store.counters().misses, 5);
  EXPECT_EQ(store.counters().bytes_disk, 0);
  EXPECT_EQ(warnings, 1);
}

TEST(BlockStore, OnlyTheOwnerMayReadTheFiles) {
  TemporaryFolder folder;
  const std::filesystem::path directory = folder.path() / "cache/";
  const mode_t before = ::umask(0);
  {
    BlockStore store({.directory = directory, .disk_bytes = 10000});
    put(store, key_of(1), block_of(key_of(1), {100}));
    store.flush();
  }
  ::umask(before);
  const auto mode = [](const std::filesystem::path& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  };
  const std::filesystem::path file = file_of(directory, key_of(1));
  EXPECT_EQ(mode(directory), 0700u);
  EXPECT_EQ(mode(file.parent_path()), 0700u);
  EXPECT_EQ(mode(file), 0600u);
}

TEST(BlockStore, ADirectoryThatCannotBeUsedIsAnError) {
  TemporaryFolder folder;
  write_bytes(folder.path() / "file", "x");
  for (const char* name : {"file", "file/below"}) {
    try {
      BlockStore store({.directory = folder.path() / name, .disk_bytes = 10000});
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find((folder.path() / name).string()), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace weir
