#include "text/tokenizer_model.h"

#include <algorithm>
#include <functional>

namespace weir {

bool WordCache::get(std::string_view piece, std::vector<int32_t>& out) const {
  if (slots_.empty() || piece.size() > kMaxBytes) return false;
  const auto hash = static_cast<uint32_t>(std::hash<std::string_view>()(piece));
  for (size_t at = hash & (slots_.size() - 1); slots_[at].length != 0; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.hash != hash || std::string_view(texts_).substr(slot.text, slot.length) != piece) continue;
    out.insert(out.end(), ids_.begin() + slot.ids, ids_.begin() + slot.ids + slot.count);
    return true;
  }
  return false;
}

void WordCache::put(std::string_view piece, const int32_t* ids, size_t count) {
  constexpr size_t kMaxWords = size_t{1} << 20;
  if (piece.empty() || piece.size() > kMaxBytes || used_ >= kMaxWords) return;
  if ((used_ + 1) * 2 > slots_.size()) grow();
  ++used_;
  const auto hash = static_cast<uint32_t>(std::hash<std::string_view>()(piece));
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].length != 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {hash, static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(piece.size()),
                static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(count)};
  texts_ += piece;
  ids_.insert(ids_.end(), ids, ids + count);
}

void WordCache::grow() {
  std::vector<Slot> old(std::max<size_t>(64, slots_.size() * 2));
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.length == 0) continue;
    size_t at = slot.hash & (slots_.size() - 1);
    while (slots_[at].length != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

}  // namespace weir
