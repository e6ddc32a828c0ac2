// The prefix cache: blocks of finished and running sequences by the tokens that they stand for, so that a sequence that
// begins with the same tokens starts from them instead of computing them (docs/architecture.md 4).
//
// A node stands for a chunk of 16 tokens after everything before it and holds the chunk's sealed pages of the groups
// that are kept forever. Its key is a 128-bit hash chained over the identity (model, settings that change bits) and the
// tokens; the tokens are compared too. A sequence may start at a node's end, position p, if a restore point is there:
// the anchor of the linear layers at p and the pages that windows see from p. Models with neither need none.
//
// What is in the cache is never written again. A block is given back when neither the cache nor a sequence holds it.
// Live sequences pin their nodes; everything else may be evicted: whole leaves by last use, restore points by last use,
// what they save and what they weigh. Evicted blocks go to the BlockStore, if there is one, and come back from it.
//
// Used by the engine's thread alone. Nothing here allocates per step: nodes and tables are made at the start.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "state/block_store.h"
#include "state/sequence_state.h"

namespace weir {

// Which restore points are kept, beyond the ends of prompts and answers and the places where sequences part.
struct CacheOptions {
  bool enabled = true;
  int64_t spacing = 0;  // also at multiples of this (of 16); 0: chosen so that anchors weigh half of the pages
  bool all = false;     // at every multiple of 16 (tests)
  StoreKey identity;    // of everything that the bits depend on
};

// Why a hit is shorter than the tokens that could have matched.
enum class HitReason {
  kFull,      // all that could match: floor16(n - 1)
  kDiverged,  // the tokens are different from there on, or nobody computed more
  kNoAnchor,  // pages match further, but no restore point does
  kEvicted,   // was here once
  kDamaged,   // blocks of the store failed their checksum
  kNoRoom,    // blocks are in the store and no free block to bring them into
  kDisabled,
};
std::string_view hit_reason_name(HitReason reason);

// What a restore point is kept for. The newest prompt end and the newest turn end of a conversation stay as such;
// earlier ones are only passed on the way, and go first.
enum class RestoreKind : uint8_t { kNone, kPassing, kBackbone, kBranch, kTurnEnd, kPromptEnd };

class PrefixCache {
 public:
  struct Counters {
    int64_t lookups = 0, hits = 0, hit_tokens = 0, matched_tokens = 0, looked_up_tokens = 0;
    int64_t inserted_nodes = 0, inserted_points = 0;
    int64_t evicted_nodes = 0, evicted_points = 0;
    int64_t restored_nodes = 0, restored_points = 0;  // from the store
    int64_t damaged = 0;
    std::array<int64_t, 7> by_reason{};
  };
  // What a lookup found. `position`: rows that need no computing; a multiple of 16, at most floor16(n - 1).
  struct Hit {
    int64_t position = 0;
    int64_t matched = 0;  // pages match so far: a restore point there would have helped
    int64_t pinned = 0;   // chunks of the hit that running sequences hold anyway
    HitReason reason = HitReason::kDiverged;
  };
  // A sequence's place in the cache: its deepest node, pinned.
  class Path {
   public:
    Path() = default;
    Path(Path&& other) noexcept : cache_(other.cache_), node_(other.node_), depth_(other.depth_) {
      other.cache_ = nullptr;
      other.node_ = -1;
      other.depth_ = 0;
    }
    Path& operator=(Path&& other) noexcept {
      std::swap(cache_, other.cache_);
      std::swap(node_, other.node_);
      std::swap(depth_, other.depth_);
      return *this;
    }
    ~Path() { release(); }
    int64_t depth() const { return depth_; }  // chunks
    void release();

   private:
    friend class PrefixCache;
    PrefixCache* cache_ = nullptr;
    int32_t node_ = -1;
    int64_t depth_ = 0;
  };

  // `store` may be null. All must outlive the cache; sequences and paths must be gone before it.
  PrefixCache(StatePools& pools, const CacheOptions& options, BlockStore* store);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // How far a sequence with these tokens could start; changes nothing.
  Hit peek(std::span<const int32_t> tokens) const;
  // Starts `state`, which is empty, where `found` says, the result of peek(tokens) with no change since, and pins it.
  // Blocks in the store are brought back; where they turn out to be damaged, the result is shorter.
  Hit start(SequenceState& state, Path& path, std::span<const int32_t> tokens, Hit found);

  // After a step that was found finite and before SequenceState::accept: enters the chunks that `state` has sealed.
  // Nothing when the cache is off. Where another sequence was first, its blocks stay.
  void extend(Path& path, const SequenceState& state, std::span<const int32_t> tokens);
  // Keeps a restore point of `state` at the end of one of its chunks (a multiple of 16 that extend has entered).
  void keep(const Path& path, int64_t position, const RestorePoint& point, RestoreKind kind);
  // Is this a position of the backbone, where every prompt leaves a restore point? For SequenceState::want_anchor.
  bool wants(int64_t position) const;
  int64_t spacing() const { return spacing_; }

  // Gives back at least one block of the pool; false when nothing there can be evicted.
  bool evict_page(int group);
  bool evict_anchor();
  int64_t evictable_nodes() const { return nodes_in_use_ - pinned_nodes_; }

  // Copies what the store does not have yet: of one sequence's path, or everything (shutdown).
  void save(const Path& path);
  void save_all();
  void clear();  // drops all that is not pinned
  const Counters& counters() const { return counters_; }
  int64_t node_count() const { return nodes_in_use_; }
  int64_t point_count() const { return static_cast<int64_t>(with_point_.size()); }
  // Walks everything and throws Error where an invariant does not hold (tests, idle checks).
  void check() const;

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int kAnchors = -1;  // in place of a page group
  struct Node {
    StoreKey key;
    int32_t parent = kNone, next_in_bucket = kNone;
    int32_t older = kNone, newer = kNone;  // in the list of leaves that may be evicted
    int32_t children = 0, pins = 0;        // pins: of live sequences in the subtree
    int64_t depth = 0;                     // chunks up to and with this one
    uint64_t used = 0;
    std::array<int32_t, kPagePositions> tokens{};
    std::vector<PageRef> pages;  // by group; empty where a group is not kept forever
    RestorePoint point;
    RestoreKind kind = RestoreKind::kNone;
    int64_t saves = 0;  // positions to the restore point above it, when it was kept
    bool in_list = false, had_point = false;
    bool page_saved = false, point_saved = false;
  };

  StoreKey child_key(const StoreKey& parent, std::span<const int32_t> tokens) const;
  static StoreKey point_key(const StoreKey& key);
  int32_t find(const StoreKey& key, std::span<const int32_t> tokens) const;
  int32_t insert(int32_t parent, const StoreKey& key, std::span<const int32_t> tokens);
  void remove(int32_t node);
  void link(int32_t node);
  void unlink(int32_t node);
  void pin(int32_t node, int32_t top);
  void unpin(int32_t node);
  void add_point(int32_t node, RestorePoint point, RestoreKind kind);  // to one without
  void drop_point(int32_t node);
  bool evict_node(int32_t node);
  bool evict_point(int group);
  bool make_room(int group);
  void save_pages(Node& node);
  void save_point(Node& node);
  bool needs_points() const { return pools_.needs_restore_points(); }
  int32_t fetch(int32_t parent, const StoreKey& key, std::span<const int32_t> tokens, HitReason& reason);
  bool fetch_point(int32_t node, HitReason& reason);
  bool stored(const StoreKey& key) const { return store_ != nullptr && store_->contains(key); }
  bool point_stored(const StoreKey& key) const { return store_ != nullptr && store_->contains(point_key(key)); }
  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

  StatePools& pools_;
  CacheOptions options_;
  BlockStore* store_ = nullptr;
  int64_t spacing_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> buckets_, free_;
  std::vector<int32_t> with_point_;  // nodes that have a restore point, in no order
  int32_t oldest_ = kNone, newest_ = kNone;
  int64_t nodes_in_use_ = 0, pinned_nodes_ = 0;
  uint64_t clock_ = 0;
  Counters counters_;
};

}  // namespace weir
