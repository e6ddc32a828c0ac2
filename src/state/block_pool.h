// Equal, reference-counted blocks of memory: pages or anchors. A block is handed out unwritten; nobody may read what
// its owner has not written.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/step_view.h"
#include "device/cuda_device.h"
#include "device/memory.h"

namespace weir {

class RawBlockPool {
 public:
  // `count` blocks of `block_bytes`, each starting on a memory page so that it can be write-protected. With a GPU they
  // lie in its memory, all of which is taken at once.
  RawBlockPool(int64_t block_bytes, int64_t count, CudaDevice* gpu = nullptr);

  std::optional<uint32_t> acquire();  // reference count 1; nothing when all are in use
  void retain(uint32_t id) { ++references_[id]; }
  void release(uint32_t id);

  PoolView view() const { return {base_, stride_}; }  // on a GPU: addresses of the device
  CudaDevice* gpu() const { return gpu_; }
  void copy(uint32_t to, uint32_t from);
  int64_t count() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_count() const { return static_cast<int64_t>(free_.size()); }
  int64_t held_count() const { return count() - free_count(); }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t bytes() const { return stride_ * count(); }  // of address space; of memory, when all have been taken
  uint32_t references(uint32_t id) const { return references_[id]; }

  // Fills released blocks with NaN patterns, so that a read of a block that nobody wrote shows (tests).
  void poison_released(bool on) { poison_ = on; }
  // acquire() finds nothing once, after so many calls that are served as always (tests).
  void refuse_after(int64_t calls) { refuse_after_ = calls; }
  bool refusal_pending() const { return refuse_after_ >= 0; }
  // Makes a block read-only or writable again; Error when the system refuses, and on a GPU.
  void protect(uint32_t id, bool read_only);

 private:
  int64_t block_bytes_ = 0;
  int64_t stride_ = 0;
  Mapping memory_;
  CudaDevice* gpu_ = nullptr;
  std::byte* base_ = nullptr;
  std::vector<uint32_t> references_;
  std::vector<uint32_t> free_;  // taken from the back
  bool poison_ = false;
  int64_t refuse_after_ = -1;  // -1: never
};

// Blocks as host memory, for the store: where they lie, or copies of a GPU's.
class HostBlocks {
 public:
  std::span<const std::byte> read(const RawBlockPool& pool, uint32_t id);
  std::span<std::byte> write(RawBlockPool& pool, uint32_t id);
  void finish();  // what was written reaches the pools

 private:
  struct Copy {
    RawBlockPool* pool = nullptr;
    uint32_t id = 0;
    const std::byte* bytes = nullptr;
  };
  std::byte* copy_of(int64_t bytes);
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::vector<Copy> written_;
};

// A counted reference to a block; copies share it.
template <class Id>
class BlockRef {
 public:
  BlockRef() = default;
  // Takes over one reference.
  BlockRef(RawBlockPool& pool, uint32_t id) : pool_(&pool), id_(id) {}
  BlockRef(const BlockRef& other) : pool_(other.pool_), id_(other.id_) {
    if (pool_ != nullptr) pool_->retain(id_);
  }
  BlockRef(BlockRef&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~BlockRef() {
    if (pool_ != nullptr) pool_->release(id_);
  }

  explicit operator bool() const { return pool_ != nullptr; }
  Id id() const {
    assert(pool_ != nullptr);
    return Id{id_};
  }
  bool shared() const { return pool_ != nullptr && pool_->references(id_) > 1; }

 private:
  RawBlockPool* pool_ = nullptr;
  uint32_t id_ = 0;
};

using PageRef = BlockRef<PageId>;
using AnchorRef = BlockRef<SlotId>;

template <class Id>
std::optional<BlockRef<Id>> acquire_block(RawBlockPool& pool) {
  const std::optional<uint32_t> id = pool.acquire();
  if (!id) return std::nullopt;
  return BlockRef<Id>(pool, *id);
}

}  // namespace weir
