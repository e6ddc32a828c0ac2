// Values by key in the order of their last use, with the sum of their sizes. Used by BlockStore for each tier.
#pragma once

#include <cassert>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "state/block_store_file.h"

namespace weir {

struct StoreKeyHash {
  size_t operator()(const StoreKey& key) const { return key.low ^ (key.high * 0x9e3779b97f4a7c15); }
};

template <class Value>
class LruMap {
 public:
  struct Node {
    StoreKey key;
    Value value;
    int64_t bytes = 0;
  };

  Value* find(const StoreKey& key) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : &found->second->value;
  }
  const Value* find(const StoreKey& key) const { return const_cast<LruMap*>(this)->find(key); }

  // As the newest. False, and nothing changed, when the key is here already.
  bool insert(const StoreKey& key, Value value, int64_t bytes) {
    if (index_.contains(key)) return false;
    nodes_.push_back({key, std::move(value), bytes});
    try {
      index_.emplace(key, std::prev(nodes_.end()));
    } catch (...) {
      nodes_.pop_back();
      throw;
    }
    bytes_ += bytes;
    return true;
  }

  void touch(const StoreKey& key) {
    const auto found = index_.find(key);
    if (found != index_.end()) nodes_.splice(nodes_.end(), nodes_, found->second);
  }

  bool erase(const StoreKey& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return false;
    bytes_ -= found->second->bytes;
    nodes_.erase(found->second);
    index_.erase(found);
    return true;
  }

  Node pop_oldest() {
    assert(!nodes_.empty());
    Node node = std::move(nodes_.front());
    index_.erase(node.key);
    nodes_.pop_front();
    bytes_ -= node.bytes;
    return node;
  }

  std::list<Node>& oldest_first() { return nodes_; }
  int64_t count() const { return static_cast<int64_t>(nodes_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  std::list<Node> nodes_;
  std::unordered_map<StoreKey, typename std::list<Node>::iterator, StoreKeyHash> index_;
  int64_t bytes_ = 0;
};

}  // namespace weir
