// Responses that clients may ask for again, or go on from: in memory, bounded, the least recently used ones first to
// go.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace weir {

// Thread-safe.
class ResponseStore {
 public:
  struct Limits {
    int64_t bytes = int64_t{256} << 20;  // of ids, responses and items
    int64_t count = 4096;
  };
  struct Entry {
    std::string response;  // the object, as JSON
    std::string items;     // an array of the conversation's items, this answer's last, as JSON
  };

  explicit ResponseStore(Limits limits) : limits_(limits) {}
  ResponseStore() : ResponseStore(Limits()) {}

  // Not kept when it alone is over the limit. An id is put only once.
  void put(std::string id, Entry entry);
  // Null when there is none (any more). Counts as a use.
  std::shared_ptr<const Entry> get(std::string_view id);
  bool erase(std::string_view id);  // false: there was none

  int64_t count() const;
  int64_t bytes() const;

 private:
  struct Kept {
    std::string id;
    std::shared_ptr<const Entry> entry;

    int64_t bytes() const { return static_cast<int64_t>(id.size() + entry->response.size() + entry->items.size()); }
  };

  void remove(std::list<Kept>::iterator kept);

  const Limits limits_;
  mutable std::mutex mutex_;
  std::list<Kept> by_use_;  // the latest first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> by_id_;
  int64_t bytes_ = 0;
};

}  // namespace weir
