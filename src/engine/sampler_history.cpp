#include "engine/sampler_history.h"

#include <atomic>
#include <cassert>
#include <utility>

namespace weir {

uint64_t TokenHistory::Version::next() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

TokenHistory::Version& TokenHistory::Version::operator=(const Version&) {
  number = next();
  return *this;
}

size_t TokenHistory::place_of(int32_t id) const {
  const size_t mask = table_.size() - 1;
  size_t at = (static_cast<uint32_t>(id) * 0x9E3779B1u >> 7) & mask;  // Fibonacci hashing
  while (table_[at].id != id && table_[at].id != -1) at = (at + 1) & mask;
  return at;
}

TokenHistory::Entry& TokenHistory::place(int32_t id) {
  assert(id >= 0);
  if (2 * (used_ + 1) > table_.size()) {
    const std::vector<Entry> old = std::exchange(table_, std::vector<Entry>(table_.empty() ? 64 : 2 * table_.size()));
    used_ = 0;
    version_ = {};
    for (const Entry& entry : old) {
      if (entry.in_prompt + entry.in_output == 0) continue;
      table_[place_of(entry.id)] = entry;
      ++used_;
    }
  }
  Entry& entry = table_[place_of(id)];
  if (entry.id == -1) {
    entry.id = id;
    ++used_;
  }
  return entry;
}

void TokenHistory::add_prompt(std::span<const int32_t> tokens) {
  assert(generated() == 0);
  for (const int32_t token : tokens) ++place(token).in_prompt;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  prompt_length_ = length();
}

void TokenHistory::add(int32_t token) {
  ++place(token).in_output;
  tokens_.push_back(token);
}

void TokenHistory::truncate(int64_t kept) {
  assert(kept >= 0 && kept <= length());
  if (kept < length()) version_ = {};
  while (length() > kept) {
    Entry& entry = table_[place_of(tokens_.back())];
    --(generated() > 0 ? entry.in_output : entry.in_prompt);
    if (generated() == 0) --prompt_length_;
    tokens_.pop_back();
  }
}

TokenHistory::Entry TokenHistory::find(int32_t id) const {
  if (table_.empty()) return {.id = id};
  const Entry entry = table_[place_of(id)];
  return entry.id == -1 ? Entry{.id = id} : entry;
}

}  // namespace weir
