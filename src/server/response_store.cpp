#include "server/response_store.h"

#include <cassert>
#include <utility>

namespace weir {

void ResponseStore::put(std::string id, Entry entry) {
  Kept kept{.id = std::move(id), .entry = std::make_shared<const Entry>(std::move(entry))};
  if (kept.bytes() > limits_.bytes || limits_.count < 1) return;
  const std::lock_guard lock(mutex_);
  assert(!by_id_.contains(kept.id));
  bytes_ += kept.bytes();
  by_use_.push_front(std::move(kept));
  by_id_.emplace(by_use_.front().id, by_use_.begin());
  while (bytes_ > limits_.bytes || static_cast<int64_t>(by_use_.size()) > limits_.count) {
    remove(std::prev(by_use_.end()));
  }
}

std::shared_ptr<const ResponseStore::Entry> ResponseStore::get(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  by_use_.splice(by_use_.begin(), by_use_, found->second);
  return found->second->entry;
}

bool ResponseStore::erase(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  remove(found->second);
  return true;
}

int64_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(by_use_.size());
}

int64_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponseStore::remove(std::list<Kept>::iterator kept) {
  bytes_ -= kept->bytes();
  by_id_.erase(kept->id);
  by_use_.erase(kept);
}

}  // namespace weir
