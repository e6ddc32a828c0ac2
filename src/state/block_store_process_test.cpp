// Processes: killed in the middle of writes, limited, without rights, and several at once.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "state/block_store.h"
#include "state/block_store_testing.h"

namespace weir {
namespace {

std::vector<size_t> sizes_of(uint64_t number) { return {1 + number * 37 % 3000, number % 3, 2000}; }

// Takes every block that the store claims to have; what is wrong, or nothing.
std::string check_all(BlockStore& store, uint64_t keys, int64_t& found) {
  for (uint64_t number = 0; number < keys; ++number) {
    const StoreKey key = key_of(number);
    const std::optional<BlockBytes> block = get(store, key, sizes_of(number));
    if (!block) continue;
    ++found;
    if (*block != block_of(key, sizes_of(number))) return concat("wrong bytes of block ", number);
  }
  return {};
}

TEST(BlockStoreProcess, KilledInTheMiddleOfWritesItLeavesNothingWrong) {
  constexpr uint64_t kKeys = 200;
  TemporaryFolder folder;
  std::mt19937 random(7);
  const BlockStore::Options options = {.host_bytes = 10000, .directory = folder.path(), .disk_bytes = 400000};
  int64_t leftovers = 0;
  int64_t found = 0;
  // Files written by the child of this round, told through shared memory: it is killed when it is at work, however long
  // the machine takes.
  auto* const written = static_cast<std::atomic<int64_t>*>(
      ::mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(written, MAP_FAILED);
  for (int round = 0; round < 60; ++round) {
    const uint32_t seed = random();
    written->store(0);
    const pid_t child = start_child([&]() -> std::string {
      BlockStore::Options slow = options;
      slow.calls.write = [](int file, std::span<const std::byte> bytes) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));  // most of the time is spent inside files
        return ::write(file, bytes.data(), std::min<size_t>(bytes.size(), 700));
      };
      BlockStore store(slow);
      std::mt19937 own(seed);
      for (;;) {
        const uint64_t number = own() % kKeys;
        const StoreKey key = key_of(number);
        const std::optional<BlockBytes> block = get(store, key, sizes_of(number));
        if (block && *block != block_of(key, sizes_of(number))) return "wrong bytes";
        if (own() % 20 == 0) store.erase(key);
        put(store, key, block_of(key, sizes_of(number)));
        written->store(store.counters().written);
      }
    });
    const int64_t enough = 5 + static_cast<int64_t>(random() % 20);
    for (int waited = 0; written->load() < enough && waited < 60000; ++waited) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    ::kill(child, SIGKILL);
    const int status = wait_for(child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself";

    const int64_t temporaries = use_of(folder.path()).temporaries;
    BlockStore store(options);
    const BlockStore::Counters counters = store.counters();
    EXPECT_EQ(counters.dropped_leftover, temporaries);
    leftovers += temporaries;
    const FolderUse use = use_of(folder.path());
    EXPECT_EQ(use.temporaries, 0);
    EXPECT_EQ(use.bytes, counters.bytes_disk);
    EXPECT_LE(use.bytes, options.disk_bytes);
    EXPECT_EQ(check_all(store, kKeys, found), "");
    EXPECT_EQ(store.counters().dropped_damaged, 0) << "what has its final name is whole";
    EXPECT_EQ(store.counters().dropped_foreign, 0);
  }
  EXPECT_GT(leftovers, 10) << "some were killed inside a file";
  EXPECT_GT(found, 500);
  ::munmap(written, sizeof(*written));
}

TEST(BlockStoreProcess, ALimitOnFileSizeIsAFailedWrite) {
  TemporaryFolder folder;
  const pid_t child = start_child([&]() -> std::string {
    const rlimit limit = {10000, 10000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "setrlimit";
    int warnings = 0;
    BlockStore store(
        {.directory = folder.path(), .disk_bytes = 1000000, .warn = [&](std::string_view) { ++warnings; }});
    for (uint64_t number = 0; number < 6; ++number) {
      put(store, key_of(number), block_of(key_of(number), {number % 2 == 0 ? size_t{9000} : size_t{20000}}));
    }
    store.flush();
    const BlockStore::Counters counters = store.counters();
    if (counters.failed_writes != 3 || counters.written != 3 || warnings != 1) return "counters";
    if (!get(store, key_of(0), {9000}) || get(store, key_of(1), {20000})) return "gets";
    return use_of(folder.path()).temporaries == 0 ? "" : "leftovers";
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST(BlockStoreProcess, AFullDiskIsAFailedWriteUntilThereIsRoom) {
  TemporaryFolder folder;
  const std::filesystem::path disk = folder.path() / "disk";
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=256k") != 0) GTEST_SKIP() << "cannot mount a small file system";
  {
    int warnings = 0;
    std::string line;
    BlockStore store({.directory = disk / "cache", .disk_bytes = 1 << 20, .warn = [&](std::string_view text) {
                        ++warnings;
                        line = text;
                      }});
    for (uint64_t number = 0; number < 20; ++number) {
      put(store, key_of(number), block_of(key_of(number), {30000}));
      store.flush();
    }
    const BlockStore::Counters counters = store.counters();
    EXPECT_GT(counters.written, 2);
    EXPECT_GT(counters.failed_writes, 2);
    EXPECT_EQ(counters.written + counters.failed_writes, 20);
    EXPECT_EQ(counters.bytes_disk, use_of(disk).bytes);
    EXPECT_EQ(use_of(disk).temporaries, 0);
    EXPECT_EQ(warnings, 1);
    EXPECT_NE(line.find("No space left on device"), std::string::npos) << line;
    for (uint64_t number = 0; number < 20; ++number) {
      const std::optional<BlockBytes> block = get(store, key_of(number), {30000});
      EXPECT_EQ(block.has_value(), static_cast<int64_t>(number) < counters.written) << number;
    }
    store.erase(key_of(0));
    put(store, key_of(19), block_of(key_of(19), {30000}));
    store.flush();
    EXPECT_TRUE(get(store, key_of(19), {30000}));
  }
  EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
}

TEST(BlockStoreProcess, AReadOnlyDirectoryServesWhatItHas) {
  TemporaryFolder folder;
  const std::filesystem::path directory = folder.path() / "cache";
  const StoreKey key = key_of(1);
  const StoreKey damaged = key_of(2);
  const auto set_mode = [&](mode_t folders, mode_t files) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      ::chmod(entry.path().c_str(), entry.is_directory() ? folders : files);
    }
    ::chmod(folder.path().c_str(), 0755);
  };
  {
    BlockStore store({.directory = directory, .disk_bytes = 100000});
    for (const StoreKey& each : {key, damaged}) put(store, each, block_of(each, {100}));
    store.flush();
  }
  write_bytes(file_of(directory, damaged), "damaged");
  const auto as_another_user = [&](auto body) {
    return wait_for(start_child([&]() -> std::string {
      if (::geteuid() == 0 && ::seteuid(65534) != 0) return "seteuid";
      return body();
    }));
  };

  set_mode(0555, 0444);
  EXPECT_EQ(as_another_user([&]() -> std::string {
              int warnings = 0;
              BlockStore store({.directory = directory, .disk_bytes = 1000, .warn = [&](auto) { ++warnings; }});
              if (store.counters().dropped_damaged != 1 || store.counters().failed_reads != 1) return "at the start";
              if (get(store, key, {100}) != block_of(key, {100})) return "get";
              if (get(store, damaged, {100})) return "damaged";
              put(store, key_of(3), block_of(key_of(3), {100}));
              put(store, key_of(4), block_of(key_of(4), {900}));  // evicts
              store.flush();
              const BlockStore::Counters counters = store.counters();
              if (counters.failed_writes != 2 || counters.written != 0) return "writes";
              if (counters.evicted_disk != 1 || counters.failed_removals != 1) return "removals";
              return warnings == 1 ? "" : "warnings";
            }),
            0);
  EXPECT_EQ(use_of(directory).blocks, 2);

  set_mode(0, 0);
  EXPECT_EQ(as_another_user([&]() -> std::string {
              try {
                BlockStore store({.directory = directory, .disk_bytes = 1000});
              } catch (const Error& error) {
                return std::string(error.what()).find("Permission denied") != std::string::npos ? "" : error.what();
              }
              return "no error";
            }),
            0);
  ::chmod(directory.c_str(), 0755);  // folders below that cannot be read: as if empty
  EXPECT_EQ(as_another_user([&]() -> std::string {
              int warnings = 0;
              BlockStore store({.directory = directory, .disk_bytes = 1000, .warn = [&](auto) { ++warnings; }});
              if (store.contains(key) || store.counters().failed_reads != 2) return "closed folders";
              return warnings == 1 ? "" : "warnings";
            }),
            0);
  set_mode(0755, 0644);
}

TEST(BlockStoreProcess, SeveralShareADirectory) {
  constexpr uint64_t kKeys = 60;
  TemporaryFolder folder;
  std::vector<pid_t> children;
  for (uint32_t process = 0; process < 4; ++process) {
    children.push_back(start_child([&, process]() -> std::string {
      std::mt19937 random(100 + process);
      int64_t hits = 0;
      for (int life = 0; life < 5; ++life) {
        // Budgets that evict all the time; the last process is another model and takes the same names.
        BlockStore store({.host_bytes = 5000,
                          .directory = folder.path(),
                          .disk_bytes = 60000,
                          .identity = {process == 3 ? 9u : 1u, 0},
                          .warn = [](std::string_view line) {
                            std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
                          }});
        for (int step = 0; step < 400; ++step) {
          const uint64_t number = random() % kKeys;
          const StoreKey key = key_of(number);
          const uint64_t variant = process == 3 ? 1 : 0;
          if (const std::optional<BlockBytes> block = get(store, key, sizes_of(number))) {
            if (*block != block_of(key, sizes_of(number), variant)) return concat("wrong bytes of block ", number);
            ++hits;
          } else {
            put(store, key, block_of(key, sizes_of(number), variant));
          }
          if (random() % 100 == 0) store.erase(key);
        }
        store.flush();
        const BlockStore::Counters counters = store.counters();
        if (counters.dropped_damaged != 0) return "damage";
        if (counters.failed_reads + counters.failed_removals != 0) return "failures";
        if (counters.bytes_disk > 60000) return "budget";
      }
      return hits > 100 ? "" : "too few hits";
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(use_of(folder.path()).temporaries, 0);
  BlockStore store({.directory = folder.path(), .disk_bytes = 1 << 30, .identity = {1, 0}});
  int64_t found = 0;
  EXPECT_EQ(check_all(store, kKeys, found), "");  // the other model may have taken any name last
  EXPECT_EQ(store.counters().dropped_damaged + store.counters().dropped_leftover, 0);
}

}  // namespace
}  // namespace weir
