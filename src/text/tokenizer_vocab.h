// Containers of tokens: by id, by text, by prefix.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

// Bounds on what a file may hold.
inline constexpr int64_t kMaxTokens = int64_t{4} << 20;  // ids lie below
inline constexpr int64_t kMaxMerges = int64_t{16} << 20;
inline constexpr size_t kMaxTokenBytes = size_t{64} << 10;
inline constexpr size_t kMaxAddedTokenBytes = 1024;

// Token texts by id, and ids by text.
class TokenTable {
 public:
  void reserve(size_t tokens);
  // False, and nothing changes, when the id has a text already. `findable`: find() shall know it; when several ids have
  // one text, it finds the first.
  bool add(int32_t id, std::string_view text, bool findable = true);

  int32_t find(std::string_view text) const;  // -1 when there is none
  bool has(int32_t id) const { return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].present; }
  std::string_view text(int32_t id) const;                                // "" when there is none
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }  // the largest id plus one
  size_t longest() const { return longest_; }                             // bytes of the longest findable text

 private:
  struct Entry {
    uint32_t offset = 0, length = 0;
    bool present = false;
  };
  void insert(int32_t id, uint32_t hash);
  void grow();

  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> slots_;  // hash << 32 | id + 1, or 0; open addressing, a power of two
  size_t used_ = 0;
  size_t longest_ = 0;
};

// Keys by prefix.
class ByteTrie {
 public:
  void add(std::string_view key, int32_t value);  // value >= 0; the last one counts
  bool empty() const { return nodes_.size() == 1; }

  // Calls found(length, value) for each key that `text` begins with, the shortest first.
  template <class Found>
  void prefixes(std::string_view text, Found found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node] >= 0) found(i + 1, nodes_[node]);
    }
  }

 private:
  static uint64_t edge(uint32_t node, unsigned char byte) { return (uint64_t{node} << 8 | byte) + 1; }
  uint32_t child(uint32_t node, unsigned char byte) const {
    if (node == 0) return first_.empty() ? 0 : first_[byte];
    const uint64_t key = edge(node, byte);
    for (size_t at = slot(key);; at = (at + 1) & (keys_.size() - 1)) {
      if (keys_[at] == key) return children_[at];
      if (keys_[at] == 0) return 0;
    }
  }
  size_t slot(uint64_t key) const { return static_cast<size_t>(key * 0x9e3779b97f4a7c15u >> 20) & (keys_.size() - 1); }
  void put(uint64_t key, uint32_t child);

  std::vector<int32_t> nodes_{-1};                          // value, or -1; node 0 is the root
  std::vector<uint32_t> first_;                             // children of the root by byte, 0 for none
  std::vector<uint64_t> keys_ = std::vector<uint64_t>(64);  // of the other edges; 0 is free
  std::vector<uint32_t> children_ = std::vector<uint32_t>(64);
  size_t edges_ = 0;
};

}  // namespace weir
