// Blocks of bytes by key, in host memory and, when a directory is given, in files: where the prefix cache keeps what
// has left the device (docs/architecture.md 1.3). A key stands for a chunk of tokens and everything before it, so equal
// keys mean equal bytes; a put with other bytes under a known key replaces them.
//
// A cache, not a database: a block may be gone at any time, but one that is returned has the bytes that were put.
// Nothing is synced to the disk; after a loss of power the checksums tell. Trouble with the directory after the start
// (a full disk, an I/O error, a directory that vanished) means "not cached", a counter and one line of warning.
//
// Several processes may share a directory. Each counts against its budget the files that it found at its start and
// those it wrote itself; it does not look for files that others add later.
//
// All functions may be called from any thread, and none waits for a write except flush(). put() and get() copy outside
// the lock. get() reads the disk on the caller's thread; writing, removing and eviction of files is the writer
// thread's.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "state/block_store_file.h"
#include "state/block_store_lru.h"

namespace weir {

class BlockStore {
 public:
  struct Options {
    int64_t host_bytes = 0;           // budget of the payloads in host memory
    std::filesystem::path directory;  // empty: no files. Made with mode 0700; files have 0600
    int64_t disk_bytes = 0;           // budget of this identity's files, headers included; 0: none are kept
    StoreKey identity;                // of model, settings and numerics; files of another are ignored
    // Blocks that wait for the writer may hold so much memory beyond host_bytes; writes above are dropped. One block
    // may always wait.
    int64_t queue_bytes = int64_t{256} << 20;
    // Called once, at the first trouble with the directory, from the thread that met it; empty: a line on stderr.
    std::function<void(std::string_view)> warn;
    BlockFiles::Calls calls;  // the system calls that read and write files; tests inject failures
  };

  struct Counters {
    int64_t hits_host = 0;  // blocks that still wait for the writer included
    int64_t hits_disk = 0;
    int64_t misses = 0;   // get() that returned false
    int64_t stored = 0;   // puts that placed a block in host memory or in the writer's queue
    int64_t refused = 0;  // puts of no bytes, of too many parts, or of more than both budgets
    int64_t written = 0;  // files
    int64_t evicted_host = 0;
    int64_t evicted_disk = 0;
    int64_t dropped_damaged = 0;   // copies whose checksum, header or size was wrong
    int64_t dropped_foreign = 0;   // files of another identity or format version: left alone
    int64_t dropped_writes = 0;    // the writer's queue was full
    int64_t dropped_leftover = 0;  // unfinished files of a process that died, removed at start
    int64_t failed_puts = 0;       // no memory
    int64_t failed_writes = 0;
    int64_t failed_reads = 0;
    int64_t failed_removals = 0;
    int64_t blocks_host = 0, bytes_host = 0;  // payloads
    int64_t blocks_disk = 0, bytes_disk = 0;  // whole files
    int64_t bytes_queued = 0;                 // waiting for the writer, some of them in host memory too
  };

  // Finds the blocks that the directory holds; damaged files and leftovers are removed, the oldest too where they
  // exceed the budget. Error when the directory cannot be made or read.
  explicit BlockStore(const Options& options);
  ~BlockStore();  // writes that wait are dropped: flush() first where they matter
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // Copies the parts, one after the other. A block of no bytes is not stored.
  void put(const StoreKey& key, std::span<const std::span<const std::byte>> parts) noexcept;
  // Total size of the parts, or -1: not here.
  int64_t bytes(const StoreKey& key) const;
  bool contains(const StoreKey& key) const { return bytes(key) >= 0; }
  // Fills the parts, whose sizes must be those of the put. False, and the parts hold anything, when the block is not
  // here, has other sizes, or no copy of it passes its checksum: such copies are dropped.
  bool get(const StoreKey& key, std::span<const std::span<std::byte>> parts) noexcept;
  void erase(const StoreKey& key);

  Counters counters() const;
  // Waits until the writer has done what was asked of it so far and files carry the times of their last use.
  void flush();

 private:
  friend struct BlockStoreTesting;
  struct Block {
    BlockShape shape;
    std::unique_ptr<std::byte[]> payload;
  };
  using BlockPtr = std::shared_ptr<const Block>;
  struct DiskCopy {
    BlockShape shape;
    int64_t stamp = 0;           // time of the last use
    bool stamp_pending = false;  // the file does not carry it yet
  };
  struct Job {
    enum class Kind { kWrite, kRemove, kStamp };
    Kind kind = Kind::kWrite;
    StoreKey key;
    BlockPtr block;  // kWrite
  };
  using Lock = std::unique_lock<std::mutex>;

  static BlockPtr copy_of(const BlockShape& shape, std::span<const std::span<const std::byte>> parts);
  void open_directory();
  void store(const StoreKey& key, const BlockShape& shape, std::span<const std::span<const std::byte>> parts);
  bool get_host(const StoreKey& key, std::span<const std::span<std::byte>> parts);
  bool get_disk(const StoreKey& key, std::span<const std::span<std::byte>> parts);
  void promote(const StoreKey& key, const BlockShape& shape, std::span<const std::span<std::byte>> parts);
  void run_writer() noexcept;
  void write_file(const Job& job, Lock& lock);
  void stamp_files(Lock& lock);
  void warn_once(const std::string& problem) noexcept;

  // With the lock held.
  const BlockShape* shape_locked(const StoreKey& key) const;
  BlockPtr in_memory_locked(const StoreKey& key) const;
  void make_room_locked(int64_t bytes, std::vector<BlockPtr>& freed);
  void forget_locked(const StoreKey& key);
  void cancel_write_locked(const StoreKey& key);
  void remove_file_locked(const StoreKey& key);
  void push_job_locked(Job job);
  void touch_disk_locked(const StoreKey& key);
  int64_t next_stamp_locked();

  Options options_;
  std::unique_ptr<BlockFiles> files_;  // null: none
  mutable std::mutex mutex_;           // of everything below
  LruMap<BlockPtr> host_;
  LruMap<DiskCopy> disk_;
  std::unordered_map<StoreKey, BlockPtr, StoreKeyHash> queued_;  // waiting or being written
  std::deque<Job> jobs_;
  int64_t bytes_queued_ = 0;
  int64_t last_stamp_ = 0;
  bool busy_ = false;
  bool stopping_ = false;
  bool warned_ = false;
  Counters counters_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::thread writer_;
};

}  // namespace weir
