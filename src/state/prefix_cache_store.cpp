// The prefix cache and its store: blocks that leave the pools and come back.
#include <algorithm>

#include "state/prefix_cache.h"

namespace weir {
int32_t PrefixCache::fetch(int32_t parent, const StoreKey& key, std::span<const int32_t> tokens, HitReason& reason) {
  std::vector<PageRef> pages(static_cast<size_t>(pools_.groups()));
  HostBlocks blocks;
  std::array<int32_t, kPagePositions> stored_tokens;
  std::vector<std::span<std::byte>> parts{std::as_writable_bytes(std::span(stored_tokens))};
  for (int group = 0; group < pools_.groups(); ++group) {
    if (!pools_.kept_forever(group)) continue;
    std::optional<PageRef> page;
    if (make_room(group)) page = acquire_block<PageId>(pools_.pages(group));
    if (!page) {
      reason = HitReason::kNoRoom;
      return kNone;
    }
    RawBlockPool& pool = pools_.pages(group);
    parts.push_back(blocks.write(pool, static_cast<uint32_t>(page->id())));
    pages[static_cast<size_t>(group)] = std::move(*page);
  }
  if (!store_->get(key, parts) || !std::ranges::equal(stored_tokens, tokens)) {
    ++counters_.damaged;
    reason = HitReason::kDamaged;
    return kNone;
  }
  blocks.finish();
  const int32_t node = insert(parent, key, tokens);
  if (node == kNone) {
    reason = HitReason::kNoRoom;
    return kNone;
  }
  for (size_t group = 0; group < pages.size(); ++group) at(node).pages[group] = std::move(pages[group]);
  at(node).page_saved = true;
  ++counters_.restored_nodes;
  return node;
}

bool PrefixCache::fetch_point(int32_t node, HitReason& reason) {
  RestorePoint point;
  std::vector<std::span<std::byte>> parts;
  HostBlocks copies;
  const int64_t position = at(node).depth * kPagePositions;
  for (int group = kAnchors; group < pools_.groups(); ++group) {
    const int64_t blocks =
        group == kAnchors ? (pools_.has_linear_layers() ? 1 : 0) : pools_.window_chunks(group, position);
    for (int64_t i = 0; i < blocks; ++i) {
      if (!make_room(group) || !point.take(pools_, group)) {
        reason = HitReason::kNoRoom;
        return false;
      }
      RawBlockPool& pool = group == kAnchors ? pools_.anchors() : pools_.pages(group);
      const uint32_t id = group == kAnchors
                              ? static_cast<uint32_t>(point.anchor.id())
                              : static_cast<uint32_t>(point.windows[static_cast<size_t>(group)].back().id());
      parts.push_back(copies.write(pool, id));
    }
  }
  if (!store_->get(point_key(at(node).key), parts)) {
    ++counters_.damaged;
    reason = HitReason::kDamaged;
    return false;
  }
  copies.finish();
  add_point(node, std::move(point), RestoreKind::kTurnEnd);
  at(node).saves = position;
  at(node).point_saved = true;
  ++counters_.restored_points;
  return true;
}

void PrefixCache::save_pages(Node& n) {
  if (store_ == nullptr || n.page_saved) return;
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(n.tokens))};
  HostBlocks blocks;
  for (int group = 0; group < pools_.groups(); ++group) {
    if (!pools_.kept_forever(group)) continue;
    const RawBlockPool& pool = pools_.pages(group);
    parts.push_back(blocks.read(pool, static_cast<uint32_t>(n.pages[static_cast<size_t>(group)].id())));
  }
  store_->put(n.key, parts);
  n.page_saved = true;
}

void PrefixCache::save_point(Node& n) {
  if (store_ == nullptr || n.point_saved || n.kind == RestoreKind::kPassing) return;
  std::vector<std::span<const std::byte>> parts;
  HostBlocks blocks;
  if (n.point.anchor) {
    parts.push_back(blocks.read(pools_.anchors(), static_cast<uint32_t>(n.point.anchor.id())));
  }
  for (size_t group = 0; group < n.point.windows.size(); ++group) {
    const RawBlockPool& pool = pools_.pages(static_cast<int>(group));
    for (const PageRef& page : n.point.windows[group]) {
      parts.push_back(blocks.read(pool, static_cast<uint32_t>(page.id())));
    }
  }
  store_->put(point_key(n.key), parts);
  n.point_saved = true;
}

void PrefixCache::save(const Path& path) {
  if (store_ == nullptr) return;
  for (int32_t node = path.node_; node != kNone; node = at(node).parent) {
    Node& n = at(node);
    save_pages(n);
    if (n.kind != RestoreKind::kNone) save_point(n);
  }
}

void PrefixCache::save_all() {
  for (const int32_t bucket : buckets_) {
    for (int32_t node = bucket; node != kNone; node = at(node).next_in_bucket) {
      save_pages(at(node));
      if (at(node).kind != RestoreKind::kNone) save_point(at(node));
    }
  }
}

}  // namespace weir
