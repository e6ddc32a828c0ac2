#include "state/block_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace weir {
namespace {
constexpr int64_t kMemoryPage = 4096;
}

RawBlockPool::RawBlockPool(int64_t block_bytes, int64_t count)
    : block_bytes_(block_bytes), stride_((block_bytes + kMemoryPage - 1) / kMemoryPage * kMemoryPage) {
  if (count > 0 && stride_ > INT64_MAX / count) fail("state: ", count, " blocks of ", block_bytes, " bytes overflow");
  memory_ = Mapping(stride_ * count);
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
  if (poison_) std::memset(view().block(PageId{id}), 0xff, static_cast<size_t>(block_bytes_));
  free_.push_back(id);
}

void RawBlockPool::protect(uint32_t id, bool read_only) {
  const int rights = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  if (mprotect(view().block(PageId{id}), static_cast<size_t>(stride_), rights) != 0) {
    fail("state: cannot change the protection of block ", id, ": ", std::strerror(errno));
  }
}

}  // namespace weir
