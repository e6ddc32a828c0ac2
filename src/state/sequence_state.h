// The state of one live sequence: page lists and anchors, and how they move. The rows themselves are written by ops.
//
// A sequence of `length` committed rows resumes from its newest anchor, at position A <= length, and the journal rows
// [A, length), at most 16. Anchors below stay only while rows above them are not yet accepted (a rollback then finds
// the old one still there), or on the backbone.
//
// Pages of a window of w positions that end below position + 1 - w of the oldest row that may be computed next are
// given back when rows are accepted. That row is the accepted position, or with linear layers the anchor at or below
// it; and every position of the backbone, whose pages stay too. So the backbone is where a deep rollback finds
// everything.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "state/block_pool.h"
#include "state/positions.h"
#include "state/state_layout.h"

namespace weir {

// The pools of an engine; one page pool per group of the layout.
class StatePools {
 public:
  struct Limits {
    int64_t pages = 0;          // per group with retention "forever" or "window"
    int64_t journal_pages = 0;  // group with retention "journal"
    int64_t anchors = 0;
    // What windows may hold of `pages` on a GPU, whose memory is taken at once: those of so many sequences, once more
    // for restore points, and of the rows of a step.
    int64_t sequences = 1, step_rows = 0;
    int64_t window_pages(int64_t window) const {
      return 2 * sequences * (chunks_for(window) + 2) + chunks_for(step_rows) + sequences;
    }
  };
  StatePools(const StateLayout& layout, const Limits& limits, CudaDevice* gpu = nullptr);

  RawBlockPool& pages(int group) { return *pages_[static_cast<size_t>(group)]; }
  RawBlockPool& anchors() { return anchors_; }
  int groups() const { return static_cast<int>(pages_.size()); }
  bool has_linear_layers() const { return has_linear_layers_; }
  int journal_group() const { return journal_group_; }
  int64_t window(int group) const { return windows_[static_cast<size_t>(group)]; }  // 0: none
  std::span<const PoolView> page_views() const { return page_views_; }
  bool kept_forever(int group) const { return group != journal_group_ && window(group) == 0; }
  // Must there be more than pages kept forever, to resume at a multiple of 16?
  bool needs_restore_points() const { return has_linear_layers_ || has_windows_; }
  // Pages of a window's group that rows from `position` (a multiple of 16) see; 0 for other groups.
  int64_t window_chunks(int group, int64_t position) const;
  int64_t kept_bytes_per_token() const;
  int64_t restore_point_bytes() const;  // at most
  // The pool that SequenceState::prepare found empty last: a page group, or -1 for anchors.
  int short_of() const { return short_of_; }

 private:
  std::vector<std::unique_ptr<RawBlockPool>> pages_;
  std::vector<PoolView> page_views_;
  std::vector<int64_t> windows_;  // by group
  RawBlockPool anchors_;
  friend class SequenceState;
  int journal_group_ = -1;
  int short_of_ = -1;
  bool has_linear_layers_ = false;
  bool has_windows_ = false;
};

// What a sequence needs, beyond the pages that are kept forever, to start at a multiple of 16: shared, immutable.
struct RestorePoint {
  int64_t position = 0;
  AnchorRef anchor;                           // empty: no linear layers, or position 0
  std::vector<std::vector<PageRef>> windows;  // by group, of windows: the pages that rows from there see, ascending

  // Gives the blocks back and keeps the memory of the lists.
  void clear() {
    position = 0;
    anchor = AnchorRef();
    for (std::vector<PageRef>& window : windows) window.clear();
  }
  bool anchor_shared() const { return !anchor || anchor.shared(); }  // giving it back would free nothing
  bool frees_page(int group) const;
  // Takes a new block: the anchor (-1) or one more page of a window's group. False when the pool has none.
  bool take(StatePools& pools, int group);
};

class SequenceState {
 public:
  // anchor_spacing: keep anchors and windows at its multiples for deep rollbacks (the backbone); a multiple of 16, or 0
  // for none.
  SequenceState(StatePools& pools, int64_t anchor_spacing);

  int64_t length() const { return length_; }
  void reserve(int64_t tokens);  // memory for the tables

  // Takes the blocks that the rows [length, length + rows) need. False, and nothing changed, when the pools are short.
  bool prepare(int32_t rows);
  // The prepared span; views into this object, valid until the next call that changes it.
  SpanView span(int32_t first_row) const;
  // The prepared rows have been computed.
  void commit();
  // Gives the prepared rows back without computing them.
  void abandon();
  // Rows below `position` will not be rolled back one by one any more: blocks kept only for that are released.
  void accept(int64_t position);
  // Forgets rows so that at most `position` remain and returns the new length: `position` itself where the journal
  // still has its rows and the windows their pages (at or above the last accepted position: always), else that of the
  // deepest anchor or backbone position below where all is at hand; the caller computes the rows between again.
  int64_t rollback(int64_t position);

  // Writes an anchor at this position, a multiple of 16, when the rows across it are computed.
  void want_anchor(int64_t position) { wanted_anchors_.push_back(position); }
  // Drops those wishes; false when there were none.
  bool forget_wanted_anchors() {
    const bool any = !wanted_anchors_.empty();
    wanted_anchors_.clear();
    return any;
  }
  // The page of a sealed chunk.
  PageRef page(int group, int64_t chunk) const;
  // What is needed to resume at `position`, a multiple of 16 up to length(): false when the anchor there or a page of a
  // window is not held. After commit and before accept everything that the step passed is.
  bool capture(int64_t position, RestorePoint& point) const;
  // An empty state becomes one of `position` rows: pages of the groups kept forever, by group and chunk, and the rest.
  void adopt(int64_t position, std::vector<std::vector<PageRef>> pages, const RestorePoint& point);

  // Position of the anchor the next row starts from (0: none).
  int64_t anchor_position() const { return anchors_.empty() ? 0 : anchors_.back().position; }
  int64_t anchor_count() const { return static_cast<int64_t>(anchors_.size()); }
  std::vector<SlotId> anchor_slots() const;

 private:
  struct Anchor {
    int64_t position = 0;
    AnchorRef block;
  };
  bool take_pages(int group, int64_t chunk);
  bool on_backbone(int64_t position) const { return anchor_spacing_ > 0 && position % anchor_spacing_ == 0; }
  void truncate_tables();
  void drop_journal_below(int64_t chunk);
  void drop_windows_before(int64_t position);
  bool windows_hold(int64_t position) const;
  int64_t resume_with_journal(int64_t position);
  void set_page(int group, int64_t chunk, PageRef page);

  StatePools& pools_;
  int64_t anchor_spacing_ = 0;
  int64_t length_ = 0;
  int32_t prepared_ = 0;
  std::vector<std::vector<PageRef>> pages_;    // by group, by chunk
  std::vector<std::vector<PageId>> page_ids_;  // the same as plain ids, for spans
  std::vector<Anchor> anchors_;                // ascending positions
  std::vector<Anchor> pending_;                // to be written by the prepared span, ascending
  std::vector<AnchorWrite> pending_writes_;
  std::vector<int64_t> wanted_anchors_;
  int64_t first_journal_chunk_ = 0;        // below it the journal table is empty
  std::vector<int64_t> first_open_chunk_;  // by group: below it a window's table has pages of the backbone only
};

}  // namespace weir
