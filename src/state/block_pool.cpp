#include "state/block_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace weir {
namespace {
constexpr int64_t kMemoryPage = 4096;
constexpr int64_t kGpuUnit = 256;
}  // namespace

RawBlockPool::RawBlockPool(int64_t block_bytes, int64_t count, CudaDevice* gpu) : block_bytes_(block_bytes), gpu_(gpu) {
  const int64_t unit = gpu != nullptr ? kGpuUnit : kMemoryPage;
  stride_ = (block_bytes + unit - 1) / unit * unit;
  if (count > 0 && stride_ > INT64_MAX / count) fail("state: ", count, " blocks of ", block_bytes, " bytes overflow");
  if (gpu != nullptr) {
    base_ = count > 0 ? gpu->allocate(stride_ * count) : nullptr;
  } else {
    memory_ = Mapping(stride_ * count);
    base_ = memory_.data();
  }
  references_.resize(static_cast<size_t>(count));
  free_.reserve(static_cast<size_t>(count));
  for (int64_t id = count - 1; id >= 0; --id) free_.push_back(static_cast<uint32_t>(id));
}

std::optional<uint32_t> RawBlockPool::acquire() {
  if (free_.empty()) return std::nullopt;
  if (refuse_after_ >= 0 && refuse_after_-- == 0) return std::nullopt;
  const uint32_t id = free_.back();
  free_.pop_back();
  references_[id] = 1;
  return id;
}

void RawBlockPool::release(uint32_t id) {
  assert(references_[id] > 0);
  if (--references_[id] > 0) return;
  if (poison_ && gpu_ != nullptr) gpu_->fill(view().block(PageId{id}), 0xff, block_bytes_);
  if (poison_ && gpu_ == nullptr) std::memset(view().block(PageId{id}), 0xff, static_cast<size_t>(block_bytes_));
  free_.push_back(id);
}

void RawBlockPool::copy(uint32_t to, uint32_t from) {
  std::byte* target = view().block(PageId{to});
  const std::byte* source = view().block(PageId{from});
  if (gpu_ != nullptr) return gpu_->copy(target, source, block_bytes_);
  std::memcpy(target, source, static_cast<size_t>(block_bytes_));
}

void RawBlockPool::protect(uint32_t id, bool read_only) {
  if (gpu_ != nullptr) fail("state: blocks on a GPU cannot be protected");
  const int rights = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  if (mprotect(view().block(PageId{id}), static_cast<size_t>(stride_), rights) != 0) {
    fail("state: cannot change the protection of block ", id, ": ", std::strerror(errno));
  }
}

std::byte* HostBlocks::copy_of(int64_t bytes) {
  copies_.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes)));
  return copies_.back().get();
}

std::span<const std::byte> HostBlocks::read(const RawBlockPool& pool, uint32_t id) {
  const std::byte* block = pool.view().block(PageId{id});
  const auto bytes = static_cast<size_t>(pool.block_bytes());
  if (pool.gpu() == nullptr) return {block, bytes};
  std::byte* copy = copy_of(pool.block_bytes());
  pool.gpu()->to_host(copy, block, pool.block_bytes());
  return {copy, bytes};
}

std::span<std::byte> HostBlocks::write(RawBlockPool& pool, uint32_t id) {
  const auto bytes = static_cast<size_t>(pool.block_bytes());
  if (pool.gpu() == nullptr) return {pool.view().block(PageId{id}), bytes};
  std::byte* copy = copy_of(pool.block_bytes());
  written_.push_back({&pool, id, copy});
  return {copy, bytes};
}

void HostBlocks::finish() {
  for (const Copy& copy : written_) {
    copy.pool->gpu()->to_device(copy.pool->view().block(PageId{copy.id}), copy.bytes, copy.pool->block_bytes());
  }
  written_.clear();
}

}  // namespace weir
