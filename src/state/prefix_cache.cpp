#define XXH_INLINE_ALL
#include "state/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "state/positions.h"

namespace weir {
namespace {

constexpr size_t kChunk = static_cast<size_t>(kPagePositions);

std::span<const int32_t> chunk_tokens(std::span<const int32_t> tokens, int64_t chunk) {
  return tokens.subspan(static_cast<size_t>(chunk) * kChunk, kChunk);
}

int64_t chosen_spacing(const StatePools& pools, int64_t wished) {
  if (wished > 0) return std::max<int64_t>(kPagePositions, floor16(wished));
  const int64_t per_token = std::max<int64_t>(1, pools.kept_bytes_per_token());
  const int64_t spacing = floor16(2 * pools.restore_point_bytes() / per_token);
  return std::max<int64_t>(64, spacing);
}

}  // namespace

std::string_view hit_reason_name(HitReason reason) {
  switch (reason) {
    case HitReason::kFull:
      return "full";
    case HitReason::kDiverged:
      return "diverged";
    case HitReason::kNoAnchor:
      return "no_anchor";
    case HitReason::kEvicted:
      return "evicted";
    case HitReason::kDamaged:
      return "damaged";
    case HitReason::kNoRoom:
      return "no_room";
    case HitReason::kDisabled:
      return "disabled";
  }
  return "?";
}

PrefixCache::PrefixCache(StatePools& pools, const CacheOptions& options, BlockStore* store)
    : pools_(pools), options_(options), store_(store), spacing_(chosen_spacing(pools, options.spacing)) {
  if (!options.enabled) return;
  int64_t count = 0;
  for (int group = 0; group < pools.groups(); ++group) {
    if (pools.kept_forever(group)) count = std::max(count, pools.pages(group).count());
  }
  if (count == 0) count = std::max<int64_t>(1024, 64 * pools.anchors().count());
  nodes_.resize(static_cast<size_t>(count));
  for (int64_t i = count - 1; i >= 0; --i) {
    nodes_[static_cast<size_t>(i)].pages.resize(static_cast<size_t>(pools.groups()));
    free_.push_back(static_cast<int32_t>(i));
  }
  with_point_.reserve(nodes_.size());
  buckets_.assign(std::bit_ceil(nodes_.size() + 1), kNone);
}

void PrefixCache::Path::release() {
  if (cache_ != nullptr) cache_->unpin(node_);
  cache_ = nullptr;
  node_ = -1;
  depth_ = 0;
}

// --- the table ---

StoreKey PrefixCache::child_key(const StoreKey& parent, std::span<const int32_t> tokens) const {
  struct {
    uint64_t high, low;
    int32_t tokens[kChunk];
  } input;
  input.high = parent.high;
  input.low = parent.low;
  std::memcpy(input.tokens, tokens.data(), sizeof(input.tokens));
  const XXH128_hash_t hash = XXH3_128bits(&input, sizeof(input));
  return {hash.high64, hash.low64};
}

// Restore points have a name of their own in the store: they come and go apart from the pages.
StoreKey PrefixCache::point_key(const StoreKey& key) { return {key.high ^ 0x5bd1e995u, ~key.low}; }

int32_t PrefixCache::find(const StoreKey& key, std::span<const int32_t> tokens) const {
  for (int32_t node = buckets_[key.low & (buckets_.size() - 1)]; node != kNone; node = at(node).next_in_bucket) {
    const Node& n = at(node);
    if (n.key.high == key.high && n.key.low == key.low && std::ranges::equal(n.tokens, tokens)) return node;
  }
  return kNone;
}

int32_t PrefixCache::insert(int32_t parent, const StoreKey& key, std::span<const int32_t> tokens) {
  if (free_.empty() && (oldest_ == kNone || !evict_node(oldest_))) return kNone;
  const int32_t node = free_.back();
  free_.pop_back();
  Node& n = at(node);
  n.key = key;
  n.parent = parent;
  n.depth = parent == kNone ? 1 : at(parent).depth + 1;
  std::ranges::copy(tokens, n.tokens.begin());
  n.children = n.pins = 0;
  n.kind = RestoreKind::kNone;
  n.had_point = n.page_saved = n.point_saved = false;
  n.used = ++clock_;
  int32_t& bucket = buckets_[key.low & (buckets_.size() - 1)];
  n.next_in_bucket = bucket;
  bucket = node;
  if (parent != kNone && at(parent).children++ == 0) unlink(parent);
  ++nodes_in_use_;
  link(node);
  return node;
}

// A leaf without pins.
void PrefixCache::remove(int32_t node) {
  Node& n = at(node);
  unlink(node);
  drop_point(node);
  int32_t* at_bucket = &buckets_[n.key.low & (buckets_.size() - 1)];
  while (*at_bucket != node) at_bucket = &at(*at_bucket).next_in_bucket;
  *at_bucket = n.next_in_bucket;
  for (PageRef& page : n.pages) page = PageRef();
  if (n.parent != kNone && --at(n.parent).children == 0) link(n.parent);
  free_.push_back(node);
  --nodes_in_use_;
}

// Leaves without pins are in the list, the longest unused first.
void PrefixCache::link(int32_t node) {
  Node& n = at(node);
  if (n.in_list || n.children > 0 || n.pins > 0) return;
  n.in_list = true;
  // In the order of use: a parent that becomes a leaf may be older than others.
  int32_t after = newest_;
  while (after != kNone && at(after).used > n.used) after = at(after).older;
  n.older = after;
  n.newer = after == kNone ? oldest_ : at(after).newer;
  (after == kNone ? oldest_ : at(after).newer) = node;
  (n.newer == kNone ? newest_ : at(n.newer).older) = node;
}

void PrefixCache::unlink(int32_t node) {
  Node& n = at(node);
  if (!n.in_list) return;
  n.in_list = false;
  (n.older == kNone ? oldest_ : at(n.older).newer) = n.newer;
  (n.newer == kNone ? newest_ : at(n.newer).older) = n.older;
  n.older = n.newer = kNone;
}

void PrefixCache::pin(int32_t node, int32_t top) {
  for (; node != top; node = at(node).parent) {
    Node& n = at(node);
    unlink(node);
    if (n.pins++ == 0) ++pinned_nodes_;
    n.used = ++clock_;
  }
}

void PrefixCache::unpin(int32_t node) {
  for (; node != kNone; node = at(node).parent) {
    Node& n = at(node);
    if (--n.pins > 0) continue;
    --pinned_nodes_;
    n.used = ++clock_;  // a child before its parent: the child goes first
    link(node);
  }
}

// --- eviction ---

void PrefixCache::drop_point(int32_t node) {
  Node& n = at(node);
  if (n.kind == RestoreKind::kNone) return;
  n.kind = RestoreKind::kNone;
  n.point = RestorePoint();
  n.point_saved = false;
  with_point_.erase(std::ranges::find(with_point_, node));
}

void PrefixCache::add_point(int32_t node, RestorePoint point, RestoreKind kind) {
  at(node).point = std::move(point);
  at(node).kind = kind;
  with_point_.push_back(node);
}

bool PrefixCache::evict_node(int32_t node) {
  Node& n = at(node);
  if (n.children > 0 || n.pins > 0) return false;
  save_pages(n);
  if (n.kind != RestoreKind::kNone) save_point(n);
  remove(node);
  ++counters_.evicted_nodes;
  return true;
}

bool PrefixCache::evict_page(int group) {
  if (!options_.enabled || group == pools_.journal_group()) return false;
  if (!pools_.kept_forever(group)) return evict_point(group);
  return oldest_ != kNone && evict_node(oldest_);
}

bool PrefixCache::evict_anchor() { return options_.enabled && evict_point(kAnchors); }

// The restore point that has been unused for long in proportion to what it saves, among those whose blocks nobody else
// holds. Points whose windows overlap hold pages together: when there are no others, they go one after the other until
// a page is free.
bool PrefixCache::evict_point(int group) {
  const RawBlockPool& pool = group == kAnchors ? pools_.anchors() : pools_.pages(group);
  const int64_t free_before = pool.free_count();
  const auto worst_point = [&](bool alone) {
    int32_t worst = kNone;
    double worst_cost = -1;
    for (const int32_t node : with_point_) {
      const Node& n = at(node);
      const bool fits = group == kAnchors ? alone && !n.point.anchor_shared()
                        : alone           ? n.point.frees_page(group)
                                          : !n.point.windows[static_cast<size_t>(group)].empty();
      if (!fits) continue;
      double cost = static_cast<double>(clock_ - n.used + 1) / static_cast<double>(n.saves + kPagePositions);
      if (n.kind == RestoreKind::kPassing) cost += 1e12;
      if (cost > worst_cost) {
        worst_cost = cost;
        worst = node;
      }
    }
    return worst;
  };
  while (pool.free_count() == free_before) {
    int32_t worst = worst_point(true);
    if (worst == kNone) worst = worst_point(false);
    if (worst == kNone) return false;
    save_point(at(worst));
    drop_point(worst);
    at(worst).had_point = true;
    ++counters_.evicted_points;
  }
  return true;
}

bool PrefixCache::make_room(int group) {
  if (group == kAnchors) return pools_.anchors().free_count() > 0 || evict_anchor();
  return pools_.pages(group).free_count() > 0 || evict_page(group);
}

// --- looking up ---

PrefixCache::Hit PrefixCache::peek(std::span<const int32_t> tokens) const {
  Hit hit;
  if (!options_.enabled) {
    hit.reason = HitReason::kDisabled;
    return hit;
  }
  const int64_t limit = tokens.empty() ? 0 : chunk_of(static_cast<int64_t>(tokens.size()) - 1);
  StoreKey key = options_.identity;
  bool had_point = false;
  int64_t pinned = 0;
  for (int64_t c = 0; c < limit; ++c) {
    const std::span<const int32_t> chunk = chunk_tokens(tokens, c);
    key = child_key(key, chunk);
    const int32_t node = find(key, chunk);
    if (node == kNone && !stored(key)) break;
    hit.matched = (c + 1) * kPagePositions;
    const bool point = !needs_points() || (node != kNone && at(node).kind != RestoreKind::kNone) || point_stored(key);
    if (node != kNone && at(node).pins > 0) ++pinned;
    if (point) {
      hit.position = hit.matched;
      hit.pinned = pinned;
    }
    had_point = !point && node != kNone && at(node).had_point;
  }
  hit.reason = hit.position == limit * kPagePositions ? HitReason::kFull
               : hit.position == hit.matched          ? HitReason::kDiverged
               : had_point                            ? HitReason::kEvicted
                                                      : HitReason::kNoAnchor;
  return hit;
}

PrefixCache::Hit PrefixCache::start(SequenceState& state, Path& path, std::span<const int32_t> tokens, Hit hit) {
  HitReason trouble = hit.reason;
  ++counters_.lookups;
  counters_.looked_up_tokens += static_cast<int64_t>(tokens.size());
  counters_.matched_tokens += hit.matched;
  // Blocks of the store may turn out to be damaged: then what is above them is tried.
  while (hit.position > 0) {
    const int64_t chunks = hit.position / kPagePositions;
    int32_t node = kNone;
    StoreKey key = options_.identity;
    Path walked;
    walked.cache_ = this;
    bool ok = true;
    for (int64_t c = 0; c < chunks && ok; ++c) {
      const std::span<const int32_t> chunk = chunk_tokens(tokens, c);
      key = child_key(key, chunk);
      int32_t next = find(key, chunk);
      if (next == kNone) next = fetch(node, key, chunk, trouble);
      ok = next != kNone;
      if (!ok) break;
      pin(next, node);  // so that fetching the next ones does not evict it
      node = next;
      walked.node_ = node;
      walked.depth_ = c + 1;
    }
    if (walked.node_ == kNone) walked.cache_ = nullptr;
    if (ok && needs_points() && at(node).kind == RestoreKind::kNone) ok = fetch_point(node, trouble);
    if (!ok) {
      // The deepest place above the trouble where a sequence can start.
      const int64_t below = std::min(walked.depth_ * kPagePositions, hit.position - kPagePositions);
      hit = peek(tokens.first(static_cast<size_t>(std::max<int64_t>(0, below)) + (below > 0 ? 1 : 0)));
      hit.position = std::min(hit.position, std::max<int64_t>(below, 0));
      hit.reason = trouble;
      continue;
    }
    std::vector<std::vector<PageRef>> pages(static_cast<size_t>(pools_.groups()));
    for (std::vector<PageRef>& group : pages) group.resize(static_cast<size_t>(chunks));
    for (int32_t n = node; n != kNone; n = at(n).parent) {
      for (size_t group = 0; group < pages.size(); ++group) {
        pages[group][static_cast<size_t>(at(n).depth - 1)] = at(n).pages[group];
      }
      at(n).used = ++clock_;
    }
    state.adopt(hit.position, std::move(pages), at(node).point);
    path = std::move(walked);
    ++counters_.hits;
    counters_.hit_tokens += hit.position;
    break;
  }
  ++counters_.by_reason[static_cast<size_t>(hit.reason)];
  return hit;
}

// --- filling ---

void PrefixCache::extend(Path& path, const SequenceState& state, std::span<const int32_t> tokens) {
  if (!options_.enabled) return;
  while ((path.depth_ + 1) * kPagePositions <= state.length()) {
    const int64_t c = path.depth_;
    const std::span<const int32_t> chunk = chunk_tokens(tokens, c);
    const StoreKey key = child_key(path.node_ == kNone ? options_.identity : at(path.node_).key, chunk);
    int32_t node = find(key, chunk);
    if (node == kNone) {
      node = insert(path.node_, key, chunk);
      if (node == kNone) return;  // all nodes are pinned
      for (int group = 0; group < pools_.groups(); ++group) {
        if (pools_.kept_forever(group)) at(node).pages[static_cast<size_t>(group)] = state.page(group, c);
      }
      ++counters_.inserted_nodes;
    }
    pin(node, path.node_);
    path.cache_ = this;
    path.node_ = node;
    path.depth_ = c + 1;
  }
}

bool PrefixCache::wants(int64_t position) const {
  return options_.enabled && needs_points() && (options_.all || position % spacing_ == 0);
}

void PrefixCache::keep(const Path& path, int64_t position, const RestorePoint& point, RestoreKind kind) {
  if (!options_.enabled || !needs_points()) return;
  const int64_t depth = position / kPagePositions;
  int32_t node = path.node_;
  while (node != kNone && at(node).depth > depth) node = at(node).parent;
  if (node == kNone || at(node).depth != depth) return;
  Node& n = at(node);
  n.used = ++clock_;
  if (n.kind == RestoreKind::kNone) {
    add_point(node, point, kind);
    ++counters_.inserted_points;
  } else if (kind > n.kind) {
    n.kind = kind;
  }
  n.saves = position;
  bool nearest = true;
  for (int32_t above = n.parent; above != kNone; above = at(above).parent) {
    Node& a = at(above);
    if (a.kind == RestoreKind::kNone) continue;
    if (nearest) n.saves = position - a.depth * kPagePositions;
    nearest = false;
    if (kind != RestoreKind::kPromptEnd && kind != RestoreKind::kTurnEnd) break;
    // The conversation has gone on: its earlier ends go first.
    if (a.kind == kind && a.children == 1) a.kind = RestoreKind::kPassing;
  }
}

void PrefixCache::clear() {
  while (oldest_ != kNone) remove(oldest_);
}

void PrefixCache::check() const {
  int64_t seen = 0, pinned = 0, points = 0, leaves = 0, listed = 0;
  std::vector<int32_t> children(nodes_.size());
  for (const int32_t bucket : buckets_) {
    for (int32_t node = bucket; node != kNone; node = at(node).next_in_bucket) {
      const Node& n = at(node);
      ++seen;
      pinned += n.pins > 0 ? 1 : 0;
      points += n.kind != RestoreKind::kNone ? 1 : 0;
      leaves += n.children == 0 && n.pins == 0 ? 1 : 0;
      if (n.in_list != (n.children == 0 && n.pins == 0)) fail("prefix cache: a leaf is not listed, or another node is");
      if (n.parent != kNone) {
        ++children[static_cast<size_t>(n.parent)];
        if (at(n.parent).depth + 1 != n.depth) fail("prefix cache: a node's depth is not its parent's and one");
        if (at(n.parent).pins < n.pins) fail("prefix cache: a node has more pins than its parent");
      }
      for (int group = 0; group < pools_.groups(); ++group) {
        if (static_cast<bool>(n.pages[static_cast<size_t>(group)]) != pools_.kept_forever(group)) {
          fail("prefix cache: a node without its pages");
        }
      }
    }
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].children != children[i] && nodes_[i].depth > 0 &&
        std::ranges::find(free_, static_cast<int32_t>(i)) == free_.end()) {
      fail("prefix cache: a node's children were miscounted");
    }
  }
  uint64_t last = 0;
  for (int32_t node = oldest_; node != kNone; node = at(node).newer) {
    ++listed;
    if (at(node).used < last) fail("prefix cache: leaves are not in the order of use");
    last = at(node).used;
  }
  if (seen != nodes_in_use_ || pinned != pinned_nodes_ || points != point_count() || leaves != listed) {
    fail("prefix cache: counted ", seen, " nodes, ", pinned, " pinned, ", points, " restore points, ", listed,
         " leaves; expected ", nodes_in_use_, ", ", pinned_nodes_, ", ", point_count(), ", ", leaves);
  }
}

}  // namespace weir
