#include "state/block_store.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace weir {

BlockStore::BlockStore(const Options& options) : options_(options) {
  options_.host_bytes = std::max<int64_t>(options_.host_bytes, 0);
  options_.disk_bytes = std::max<int64_t>(options_.disk_bytes, 0);
  if (options_.directory.empty()) return;
  files_ = std::make_unique<BlockFiles>(options_.directory, options_.identity, options_.calls);
  open_directory();
  // The writer takes no signals: the program's handlers run on the program's threads, and a file that grows beyond a
  // limit of the process (SIGXFSZ) is an error of write, not the end.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    writer_ = std::thread([this] { run_writer(); });
  } catch (const std::system_error& error) {
    files_.reset();
    disk_ = {};
    warn_once(concat("cannot start a thread: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BlockStore::~BlockStore() {
  if (!writer_.joinable()) return;
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  writer_.join();
}

void BlockStore::open_directory() {
  BlockFiles::Scan scan = files_->scan();
  counters_.dropped_damaged = scan.damaged;
  counters_.dropped_foreign = scan.foreign;
  counters_.dropped_leftover = scan.leftovers;
  counters_.failed_reads = scan.failed;
  if (!scan.problem.empty()) warn_once(scan.problem);
  std::sort(scan.blocks.begin(), scan.blocks.end(),
            [](const auto& a, const auto& b) { return std::pair(a.stamp, a.key) < std::pair(b.stamp, b.key); });
  for (BlockFiles::Found& found : scan.blocks) {
    last_stamp_ = std::max(last_stamp_, found.stamp);
    const int64_t bytes = BlockFiles::file_bytes(found.shape);
    disk_.insert(found.key, {std::move(found.shape), found.stamp, false}, bytes);
  }
  while (disk_.bytes() > options_.disk_bytes) {
    const BlockFiles::Result result = files_->remove(disk_.pop_oldest().key);
    ++counters_.evicted_disk;
    if (result.outcome != BlockFiles::Outcome::kFailed) continue;
    ++counters_.failed_removals;
    warn_once(result.problem);
  }
}

BlockStore::BlockPtr BlockStore::copy_of(const BlockShape& shape, std::span<const std::span<const std::byte>> parts) {
  auto block = std::make_shared<Block>();
  block->shape = shape;
  block->payload = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(shape.bytes));
  std::byte* out = block->payload.get();
  for (const auto& part : parts) {
    if (!part.empty()) std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
  return block;
}

void BlockStore::put(const StoreKey& key, std::span<const std::span<const std::byte>> parts) noexcept {
  try {
    const BlockShape shape = BlockShape::of(parts);
    if (shape.bytes > 0 && shape.bytes <= BlockFiles::kMaxBytes && parts.size() <= BlockFiles::kMaxParts) {
      return store(key, shape, parts);
    }
    const Lock lock(mutex_);
    ++counters_.refused;
  } catch (...) {
    const Lock lock(mutex_);
    ++counters_.failed_puts;
  }
}

void BlockStore::store(const StoreKey& key, const BlockShape& shape,
                       std::span<const std::span<const std::byte>> parts) {
  BlockPtr block;
  bool keep = false;
  bool write = false;
  std::vector<BlockPtr> freed;  // let go of without the lock
  {
    const Lock lock(mutex_);
    const BlockShape* known = shape_locked(key);
    if (known != nullptr && *known != shape) {
      forget_locked(key);
      known = nullptr;
    }
    const bool kept = host_.find(key) != nullptr;
    const bool on_disk = disk_.find(key) != nullptr;
    host_.touch(key);
    touch_disk_locked(key);
    block = in_memory_locked(key);
    keep = !kept && shape.bytes <= options_.host_bytes;
    write = files_ && !on_disk && !queued_.contains(key) && BlockFiles::file_bytes(shape) <= options_.disk_bytes;
    if (!keep && !write && known == nullptr) ++counters_.refused;
    if (write && bytes_queued_ > 0 && bytes_queued_ + shape.bytes > options_.queue_bytes) {
      ++counters_.dropped_writes;
      write = false;
    }
    if (!keep && !write) return;
    if (keep) make_room_locked(shape.bytes, freed);
  }
  freed.clear();  // before the copy takes memory
  if (!block) block = copy_of(shape, parts);

  const Lock lock(mutex_);
  if (keep) {
    make_room_locked(shape.bytes, freed);
    host_.insert(key, block, shape.bytes);
  }
  if (write && queued_.emplace(key, block).second) {
    bytes_queued_ += shape.bytes;
    push_job_locked({Job::Kind::kWrite, key, block});
  }
  ++counters_.stored;
}

int64_t BlockStore::bytes(const StoreKey& key) const {
  const Lock lock(mutex_);
  const BlockShape* shape = shape_locked(key);
  return shape == nullptr ? -1 : shape->bytes;
}

bool BlockStore::get(const StoreKey& key, std::span<const std::span<std::byte>> parts) noexcept {
  try {
    if (get_host(key, parts) || get_disk(key, parts)) return true;
  } catch (...) {  // no memory: a miss
  }
  const Lock lock(mutex_);
  ++counters_.misses;
  return false;
}

bool BlockStore::get_host(const StoreKey& key, std::span<const std::span<std::byte>> parts) {
  BlockPtr block;
  {
    const Lock lock(mutex_);
    block = in_memory_locked(key);
  }
  if (!block || !block->shape.fits(parts)) return false;
  const std::byte* from = block->payload.get();
  for (const auto& part : parts) {
    if (!part.empty()) std::memcpy(part.data(), from, part.size());
    from += part.size();
  }
  const bool whole = digest_of(parts) == block->shape.checksum;

  const Lock lock(mutex_);
  if (whole) {
    host_.touch(key);
    touch_disk_locked(key);
    ++counters_.hits_host;
    return true;
  }
  ++counters_.dropped_damaged;
  const BlockPtr* kept = host_.find(key);
  if (kept != nullptr && *kept == block) host_.erase(key);
  const auto queued = queued_.find(key);
  if (queued != queued_.end() && queued->second == block) cancel_write_locked(key);
  return false;
}

bool BlockStore::get_disk(const StoreKey& key, std::span<const std::span<std::byte>> parts) {
  BlockShape shape;
  int64_t stamp = 0;
  {
    const Lock lock(mutex_);
    const DiskCopy* copy = disk_.find(key);
    if (copy == nullptr || !copy->shape.fits(parts)) return false;
    shape = copy->shape;
    stamp = next_stamp_locked();
  }
  const BlockFiles::Result result = files_->read(key, shape, parts, stamp);
  if (result.outcome == BlockFiles::Outcome::kFailed) warn_once(result.problem);
  {
    const Lock lock(mutex_);
    DiskCopy* const copy = disk_.find(key);
    const bool same = copy != nullptr && copy->shape == shape;
    if (result.outcome == BlockFiles::Outcome::kDone) {
      ++counters_.hits_disk;
      if (same) {
        disk_.touch(key);
        copy->stamp = stamp;
        copy->stamp_pending = false;
      }
    } else {
      if (same) disk_.erase(key);
      switch (result.outcome) {
        case BlockFiles::Outcome::kDamaged:
          ++counters_.dropped_damaged;
          break;
        case BlockFiles::Outcome::kForeign:
          ++counters_.dropped_foreign;
          break;
        case BlockFiles::Outcome::kFailed:
          ++counters_.failed_reads;
          break;
        default:
          break;
      }
      // A foreign file is its owner's. One that could not be read goes, since nobody would count it any more.
      const bool ours =
          result.outcome == BlockFiles::Outcome::kDamaged || result.outcome == BlockFiles::Outcome::kFailed;
      if (same && ours) remove_file_locked(key);
      return false;
    }
  }
  promote(key, shape, parts);
  return true;
}

// What came from the disk is kept in host memory too.
void BlockStore::promote(const StoreKey& key, const BlockShape& shape, std::span<const std::span<std::byte>> parts) {
  if (shape.bytes > options_.host_bytes) return;
  try {
    std::vector<BlockPtr> freed;
    {
      const Lock lock(mutex_);
      make_room_locked(shape.bytes, freed);
    }
    freed.clear();
    const std::vector<std::span<const std::byte>> sources(parts.begin(), parts.end());
    BlockPtr block = copy_of(shape, sources);
    const Lock lock(mutex_);
    make_room_locked(shape.bytes, freed);
    const BlockShape* known = shape_locked(key);
    if (known != nullptr && *known == shape) host_.insert(key, std::move(block), shape.bytes);
  } catch (...) {  // no memory: it stays on the disk alone
  }
}

void BlockStore::erase(const StoreKey& key) {
  const Lock lock(mutex_);
  forget_locked(key);
}

BlockStore::Counters BlockStore::counters() const {
  const Lock lock(mutex_);
  Counters out = counters_;
  out.blocks_host = host_.count();
  out.bytes_host = host_.bytes();
  out.blocks_disk = disk_.count();
  out.bytes_disk = disk_.bytes();
  out.bytes_queued = bytes_queued_;
  return out;
}

void BlockStore::flush() {
  if (!writer_.joinable()) return;
  Lock lock(mutex_);
  push_job_locked({Job::Kind::kStamp, {}, nullptr});
  idle_.wait(lock, [&] { return jobs_.empty() && !busy_; });
}

// One line, at the first trouble.
void BlockStore::warn_once(const std::string& problem) noexcept {
  try {
    {
      const Lock lock(mutex_);
      if (std::exchange(warned_, true)) return;
    }
    const std::string line = concat("prefix cache: ", problem, "; going on without what cannot be kept");
    if (options_.warn) {
      options_.warn(line);
    } else {
      std::fprintf(stderr, "weir: %s\n", line.c_str());
    }
  } catch (...) {}
}

const BlockShape* BlockStore::shape_locked(const StoreKey& key) const {
  const BlockPtr* kept = host_.find(key);
  if (kept != nullptr) return &(*kept)->shape;
  const auto queued = queued_.find(key);
  if (queued != queued_.end()) return &queued->second->shape;
  const DiskCopy* copy = disk_.find(key);
  return copy == nullptr ? nullptr : &copy->shape;
}

BlockStore::BlockPtr BlockStore::in_memory_locked(const StoreKey& key) const {
  const BlockPtr* kept = host_.find(key);
  if (kept != nullptr) return *kept;
  const auto queued = queued_.find(key);
  return queued == queued_.end() ? nullptr : queued->second;
}

void BlockStore::make_room_locked(int64_t bytes, std::vector<BlockPtr>& freed) {
  while (host_.count() > 0 && host_.bytes() + bytes > options_.host_bytes) {
    freed.push_back(host_.pop_oldest().value);
    ++counters_.evicted_host;
  }
}

// All copies of a key, in all tiers.
void BlockStore::forget_locked(const StoreKey& key) {
  host_.erase(key);
  if (disk_.erase(key)) remove_file_locked(key);
  if (queued_.contains(key)) cancel_write_locked(key);
}

// The write may be under way: the removal that follows it in the queue takes away what it leaves.
void BlockStore::cancel_write_locked(const StoreKey& key) {
  const auto queued = queued_.find(key);
  bytes_queued_ -= queued->second->shape.bytes;
  queued_.erase(queued);
  remove_file_locked(key);
}

void BlockStore::remove_file_locked(const StoreKey& key) { push_job_locked({Job::Kind::kRemove, key, nullptr}); }

void BlockStore::push_job_locked(Job job) {
  jobs_.push_back(std::move(job));
  work_.notify_one();
}

void BlockStore::touch_disk_locked(const StoreKey& key) {
  DiskCopy* const copy = disk_.find(key);
  if (copy == nullptr) return;
  disk_.touch(key);
  copy->stamp = next_stamp_locked();
  copy->stamp_pending = true;
}

// The time, made strictly ascending: it is the order of use that counts.
int64_t BlockStore::next_stamp_locked() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  last_stamp_ = std::max<int64_t>(last_stamp_ + 1, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  return last_stamp_;
}

void BlockStore::run_writer() noexcept {
  Lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    try {
      if (job.kind == Job::Kind::kStamp) {
        stamp_files(lock);
      } else if (job.kind == Job::Kind::kRemove) {
        lock.unlock();
        const BlockFiles::Result result = files_->remove(job.key);
        if (result.outcome == BlockFiles::Outcome::kFailed) warn_once(result.problem);
        lock.lock();
        if (result.outcome == BlockFiles::Outcome::kFailed) ++counters_.failed_removals;
      } else if (!stopping_) {
        write_file(job, lock);
      }
    } catch (...) {  // no memory
      if (!lock.owns_lock()) lock.lock();
      ++counters_.failed_writes;
      const auto queued = queued_.find(job.key);
      if (job.block && queued != queued_.end() && queued->second == job.block) {
        bytes_queued_ -= job.block->shape.bytes;
        queued_.erase(queued);
      }
    }
    lock.unlock();
    job.block.reset();  // frees memory
    lock.lock();
    busy_ = false;
    if (jobs_.empty()) idle_.notify_all();
  }
  try {
    stamp_files(lock);
  } catch (...) {}
}

void BlockStore::write_file(const Job& job, Lock& lock) {
  const auto wanted = [&] {
    const auto queued = queued_.find(job.key);
    return queued != queued_.end() && queued->second == job.block;
  };
  if (!wanted()) return;  // cancelled
  const BlockShape& shape = job.block->shape;
  const int64_t bytes = BlockFiles::file_bytes(shape);
  // Room first, so that the directory never holds more than its budget.
  std::vector<StoreKey> evicted;
  while (disk_.count() > 0 && disk_.bytes() + bytes > options_.disk_bytes) {
    evicted.push_back(disk_.pop_oldest().key);
    ++counters_.evicted_disk;
  }
  const int64_t stamp = next_stamp_locked();

  lock.unlock();
  int64_t failed_removals = 0;
  for (const StoreKey& key : evicted) {
    const BlockFiles::Result result = files_->remove(key);
    if (result.outcome != BlockFiles::Outcome::kFailed) continue;
    ++failed_removals;
    warn_once(result.problem);
  }
  const std::span payload(job.block->payload.get(), static_cast<size_t>(shape.bytes));
  const BlockFiles::Result result = files_->write(job.key, shape, payload, stamp);
  const bool done = result.outcome == BlockFiles::Outcome::kDone;
  if (!done) warn_once(result.problem);
  lock.lock();

  counters_.failed_removals += failed_removals;
  ++(done ? counters_.written : counters_.failed_writes);
  if (!wanted()) return;
  if (done) disk_.insert(job.key, {shape, stamp, false}, bytes);
  bytes_queued_ -= shape.bytes;
  queued_.erase(job.key);
}

void BlockStore::stamp_files(Lock& lock) {
  std::vector<std::pair<StoreKey, int64_t>> stamps;
  for (auto& node : disk_.oldest_first()) {
    if (!std::exchange(node.value.stamp_pending, false)) continue;
    stamps.emplace_back(node.key, node.value.stamp);
  }
  lock.unlock();
  for (const auto& [key, stamp] : stamps) files_->set_stamp(key, stamp);
  lock.lock();
}

}  // namespace weir
