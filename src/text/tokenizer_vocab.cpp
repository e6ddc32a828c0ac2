#include "text/tokenizer_vocab.h"

#include <algorithm>
#include <functional>

namespace weir {
namespace {

uint32_t hash_of(std::string_view text) { return static_cast<uint32_t>(std::hash<std::string_view>()(text)); }

}  // namespace

void TokenTable::reserve(size_t tokens) {
  entries_.reserve(tokens);
  bytes_.reserve(tokens * 8);
}

bool TokenTable::add(int32_t id, std::string_view text, bool findable) {
  if (has(id)) return false;
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  entries_[static_cast<size_t>(id)] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size()), true};
  bytes_ += text;
  if (findable && find(text) < 0) {
    if ((used_ + 1) * 2 > slots_.size()) grow();
    insert(id, hash_of(text));
    ++used_;
    longest_ = std::max(longest_, text.size());
  }
  return true;
}

void TokenTable::insert(int32_t id, uint32_t hash) {
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = uint64_t{hash} << 32 | static_cast<uint32_t>(id + 1);
}

void TokenTable::grow() {
  std::vector<uint64_t> old(std::max<size_t>(1024, slots_.size() * 2));
  old.swap(slots_);
  for (uint64_t slot : old) {
    if (slot != 0) insert(static_cast<int32_t>(slot & 0xffffffffu) - 1, static_cast<uint32_t>(slot >> 32));
  }
}

int32_t TokenTable::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const uint32_t hash = hash_of(text);
  for (size_t at = hash & (slots_.size() - 1); slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at] >> 32 != hash) continue;
    const int32_t id = static_cast<int32_t>(slots_[at] & 0xffffffffu) - 1;
    if (this->text(id) == text) return id;
  }
  return -1;
}

std::string_view TokenTable::text(int32_t id) const {
  if (!has(id)) return {};
  const Entry& entry = entries_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(entry.offset, entry.length);
}

void ByteTrie::add(std::string_view key, int32_t value) {
  if (first_.empty()) first_.resize(256);
  uint32_t node = 0;
  for (char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back(-1);
      if (node == 0) {
        first_[byte] = next;
      } else {
        put(edge(node, byte), next);
      }
    }
    node = next;
  }
  if (node != 0) nodes_[node] = value;
}

void ByteTrie::put(uint64_t key, uint32_t child) {
  if (++edges_ * 2 > keys_.size()) {
    std::vector<uint64_t> keys(keys_.size() * 2);
    std::vector<uint32_t> children(keys.size());
    keys.swap(keys_);
    children.swap(children_);
    edges_ = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] != 0) put(keys[i], children[i]);
    }
    ++edges_;
  }
  size_t at = slot(key);
  while (keys_[at] != 0) at = (at + 1) & (keys_.size() - 1);
  keys_[at] = key;
  children_[at] = child;
}

}  // namespace weir
