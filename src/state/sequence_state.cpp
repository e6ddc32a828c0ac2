#include "state/sequence_state.h"

#include <algorithm>
#include <cassert>

#include "base/error.h"
#include "state/positions.h"

namespace weir {
StatePools::StatePools(const StateLayout& layout, const Limits& limits, CudaDevice* gpu)
    : anchors_(layout.anchor_bytes(), layout.anchor_bytes() > 0 ? limits.anchors : 0, gpu),
      journal_group_(layout.group_of(Retention::kJournal)),
      has_linear_layers_(layout.anchor_bytes() > 0) {
  if (layout.groups().size() > kMaxPageGroups) fail("state: more than ", kMaxPageGroups, " page groups");
  for (const StateLayout::Group& group : layout.groups()) {
    int64_t count = group.retention == Retention::kJournal ? limits.journal_pages : limits.pages;
    if (gpu != nullptr && group.retention == Retention::kWindow)
      count = std::min(count, limits.window_pages(group.window));
    pages_.push_back(std::make_unique<RawBlockPool>(group.page_bytes, count, gpu));
    page_views_.push_back(pages_.back()->view());
    windows_.push_back(group.window);
    has_windows_ = has_windows_ || group.window > 0;
  }
}

SequenceState::SequenceState(StatePools& pools, int64_t anchor_spacing)
    : pools_(pools),
      anchor_spacing_(anchor_spacing),
      pages_(static_cast<size_t>(pools.groups())),
      page_ids_(static_cast<size_t>(pools.groups())),
      first_open_chunk_(static_cast<size_t>(pools.groups())) {
  assert(anchor_spacing % kPagePositions == 0);
}

void SequenceState::set_page(int group, int64_t chunk, PageRef page) {
  auto& refs = pages_[static_cast<size_t>(group)];
  auto& ids = page_ids_[static_cast<size_t>(group)];
  if (static_cast<int64_t>(refs.size()) <= chunk) {
    refs.resize(static_cast<size_t>(chunk) + 1);
    ids.resize(static_cast<size_t>(chunk) + 1, kNoPage);
  }
  ids[static_cast<size_t>(chunk)] = page ? page.id() : kNoPage;
  refs[static_cast<size_t>(chunk)] = std::move(page);
}

// The chunk gets a page that this sequence alone may write: the one it has, a private copy of a shared one, or a new
// one.
bool SequenceState::take_pages(int group, int64_t chunk) {
  RawBlockPool& pool = pools_.pages(group);
  const auto& refs = pages_[static_cast<size_t>(group)];
  const bool present = chunk < static_cast<int64_t>(refs.size()) && refs[static_cast<size_t>(chunk)];
  if (present && !refs[static_cast<size_t>(chunk)].shared()) return true;
  std::optional<PageRef> page = acquire_block<PageId>(pool);
  if (!page) {
    pools_.short_of_ = group;
    return false;
  }
  if (present) {
    pool.copy(static_cast<uint32_t>(page->id()), static_cast<uint32_t>(refs[static_cast<size_t>(chunk)].id()));
  }
  set_page(group, chunk, std::move(*page));
  return true;
}

bool SequenceState::prepare(int32_t rows) {
  assert(rows >= 1 && prepared_ == 0);
  const int64_t end = length_ + rows;
  const int64_t last_chunk = chunk_of(end - 1);
  prepared_ = rows;
  bool ok = true;
  for (int group = 0; group < pools_.groups() && ok; ++group) {
    if (group == pools_.journal_group()) {
      // Only the chunk that a later step resumes in keeps its journal; the first one already has its page, if it is
      // open.
      ok = take_pages(group, last_chunk);
      continue;
    }
    for (int64_t chunk = chunk_of(length_); chunk <= last_chunk && ok; ++chunk) ok = take_pages(group, chunk);
  }
  if (pools_.has_linear_layers() && ok) {
    const int64_t last_boundary = floor16(end - 1);
    for (int64_t position = anchor_position() + kPagePositions; position <= last_boundary && ok;
         position += kPagePositions) {
      const bool wanted = std::ranges::find(wanted_anchors_, position) != wanted_anchors_.end();
      if (position != last_boundary && !on_backbone(position) && !wanted) continue;
      std::optional<AnchorRef> slot = acquire_block<SlotId>(pools_.anchors());
      ok = slot.has_value();
      if (!ok) {
        pools_.short_of_ = -1;
        break;
      }
      pending_writes_.push_back({position, slot->id()});
      pending_.push_back({position, std::move(*slot)});
    }
  }
  if (!ok) abandon();
  return ok;
}

SpanView SequenceState::span(int32_t first_row) const {
  assert(prepared_ > 0);
  SpanView view;
  view.first_row = first_row;
  view.rows = prepared_;
  view.first_position = length_;
  for (size_t group = 0; group < page_ids_.size(); ++group) view.pages[group] = page_ids_[group];
  view.anchor = anchors_.empty() ? kZeroAnchor : anchors_.back().block.id();
  view.anchor_position = anchor_position();
  view.anchor_writes = pending_writes_;
  return view;
}

void SequenceState::commit() {
  assert(prepared_ > 0);
  length_ += prepared_;
  prepared_ = 0;
  for (Anchor& anchor : pending_) anchors_.push_back(std::move(anchor));
  pending_.clear();
  pending_writes_.clear();
  std::erase_if(wanted_anchors_, [&](int64_t position) { return position < length_; });
}

void SequenceState::abandon() {
  prepared_ = 0;
  pending_.clear();
  pending_writes_.clear();
  truncate_tables();
}

void SequenceState::truncate_tables() {
  const size_t chunks = static_cast<size_t>(chunks_for(length_));
  for (size_t group = 0; group < pages_.size(); ++group) {
    if (pages_[group].size() <= chunks) continue;
    pages_[group].resize(chunks);
    page_ids_[group].resize(chunks);
  }
}

void SequenceState::drop_journal_below(int64_t chunk) {
  const int group = pools_.journal_group();
  if (group < 0) return;
  const int64_t have = static_cast<int64_t>(pages_[static_cast<size_t>(group)].size());
  for (; first_journal_chunk_ < chunk && first_journal_chunk_ < have; ++first_journal_chunk_) {
    set_page(group, first_journal_chunk_, PageRef());
  }
}

// Rows from `position` on may be computed next, and those at positions of the backbone.
void SequenceState::drop_windows_before(int64_t position) {
  for (int group = 0; group < pools_.groups(); ++group) {
    const int64_t window = pools_.window(group);
    if (window == 0) continue;
    int64_t& chunk = first_open_chunk_[static_cast<size_t>(group)];
    for (; (chunk + 1) * kPagePositions <= position - window + 1; ++chunk) {
      if (anchor_spacing_ > 0) {
        const int64_t next = (chunk * kPagePositions / anchor_spacing_ + 1) * anchor_spacing_;
        if ((chunk + 1) * kPagePositions > next - window + 1) continue;
      }
      set_page(group, chunk, PageRef());
    }
  }
}

// Are all pages there that a row at `position` sees?
bool SequenceState::windows_hold(int64_t position) const {
  for (int group = 0; group < pools_.groups(); ++group) {
    const int64_t window = pools_.window(group);
    if (window == 0) continue;
    const auto& ids = page_ids_[static_cast<size_t>(group)];
    for (int64_t chunk = chunk_of(std::max<int64_t>(position - window + 1, 0)); chunk * kPagePositions < position;
         ++chunk) {
      if (ids[static_cast<size_t>(chunk)] == kNoPage) return false;
    }
  }
  return true;
}

void SequenceState::accept(int64_t position) {
  assert(prepared_ == 0 && position <= length_);
  if (!pools_.has_linear_layers()) return drop_windows_before(position);
  // The anchor that accepted rows resume from, and those above it, stay.
  size_t keep = anchors_.size();
  while (keep > 0 && anchors_[keep - 1].position > position) --keep;
  if (keep == 0) return;
  const int64_t newest = anchors_[keep - 1].position;
  std::erase_if(anchors_, [&](const Anchor& a) { return a.position < newest && !on_backbone(a.position); });
  drop_journal_below(chunk_of(newest));
  drop_windows_before(newest);
}

int64_t SequenceState::rollback(int64_t position) {
  assert(prepared_ == 0 && position >= 0);
  if (position >= length_) return length_;
  int64_t target = position;
  if (pools_.has_linear_layers()) {
    target = resume_with_journal(position);
    while (!windows_hold(target)) {
      target = target > anchor_position() ? anchor_position() : resume_with_journal(target - 1);
    }
  } else {
    while (!windows_hold(target)) {
      target = anchor_spacing_ > 0 ? (target - 1) / anchor_spacing_ * anchor_spacing_ : 0;
    }
  }
  length_ = target;
  truncate_tables();
  first_journal_chunk_ = std::min(first_journal_chunk_, chunk_of(anchor_position()));
  for (int group = 0; group < pools_.groups(); ++group) {
    int64_t& chunk = first_open_chunk_[static_cast<size_t>(group)];
    chunk = std::min(chunk, chunk_of(std::max<int64_t>(length_ - pools_.window(group) + 1, 0)));
  }
  return length_;
}

// Drops the anchors above `position`; where the linear layers can resume at or below it.
int64_t SequenceState::resume_with_journal(int64_t position) {
  while (!anchors_.empty() && anchors_.back().position > position) anchors_.pop_back();
  const int64_t anchor = anchor_position();
  const auto& journal = page_ids_[static_cast<size_t>(pools_.journal_group())];
  const auto chunk = static_cast<size_t>(chunk_of(anchor));
  const bool journal_has_rows =
      position - anchor <= kPagePositions && chunk < journal.size() && journal[chunk] != kNoPage;
  return journal_has_rows ? position : anchor;
}

void SequenceState::reserve(int64_t tokens) {
  const auto chunks = static_cast<size_t>(chunk_of(tokens) + 2);
  for (std::vector<PageRef>& group : pages_) group.reserve(chunks);
  for (std::vector<PageId>& group : page_ids_) group.reserve(chunks);
  anchors_.reserve(8);
  pending_.reserve(8);
  pending_writes_.reserve(8);
}

PageRef SequenceState::page(int group, int64_t chunk) const {
  assert((chunk + 1) * kPagePositions <= length_);
  return pages_[static_cast<size_t>(group)][static_cast<size_t>(chunk)];
}

bool SequenceState::capture(int64_t position, RestorePoint& point) const {
  assert(position % kPagePositions == 0 && position <= length_);
  point.position = position;
  point.anchor = AnchorRef();
  if (pools_.has_linear_layers() && position > 0) {
    const auto anchor = std::ranges::find(anchors_, position, &Anchor::position);
    if (anchor == anchors_.end()) return false;
    point.anchor = anchor->block;
  }
  point.windows.resize(pages_.size());
  for (int group = 0; group < pools_.groups(); ++group) {
    std::vector<PageRef>& window = point.windows[static_cast<size_t>(group)];
    window.clear();
    const int64_t end = chunk_of(position);
    for (int64_t chunk = end - pools_.window_chunks(group, position); chunk < end; ++chunk) {
      const PageRef& page = pages_[static_cast<size_t>(group)][static_cast<size_t>(chunk)];
      if (!page) return false;
      window.push_back(page);
    }
  }
  return true;
}

void SequenceState::adopt(int64_t position, std::vector<std::vector<PageRef>> pages, const RestorePoint& point) {
  assert(length_ == 0 && prepared_ == 0 && position % kPagePositions == 0);
  const int64_t chunks = chunk_of(position);
  for (int group = 0; group < pools_.groups(); ++group) {
    const auto g = static_cast<size_t>(group);
    if (pools_.kept_forever(group)) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk)
        set_page(group, chunk, std::move(pages[g][static_cast<size_t>(chunk)]));
    } else if (pools_.window(group) > 0) {
      int64_t chunk = chunks - static_cast<int64_t>(point.windows[g].size());
      first_open_chunk_[g] = chunk;
      if (chunks > 0) set_page(group, chunks - 1, PageRef());
      for (const PageRef& page : point.windows[g]) set_page(group, chunk++, page);
    }
  }
  if (point.anchor) anchors_.push_back({position, point.anchor});
  first_journal_chunk_ = chunks;
  length_ = position;
}

bool RestorePoint::frees_page(int group) const {
  if (static_cast<size_t>(group) >= windows.size()) return false;
  return std::ranges::any_of(windows[static_cast<size_t>(group)], [](const PageRef& page) { return !page.shared(); });
}

bool RestorePoint::take(StatePools& pools, int group) {
  if (group < 0) {
    std::optional<AnchorRef> block = acquire_block<SlotId>(pools.anchors());
    if (!block) return false;
    anchor = std::move(*block);
    return true;
  }
  windows.resize(static_cast<size_t>(pools.groups()));
  std::optional<PageRef> page = acquire_block<PageId>(pools.pages(group));
  if (!page) return false;
  windows[static_cast<size_t>(group)].push_back(std::move(*page));
  return true;
}

int64_t StatePools::window_chunks(int group, int64_t position) const {
  if (window(group) == 0) return 0;
  return chunk_of(position) - chunk_of(std::max<int64_t>(position - window(group) + 1, 0));
}

int64_t StatePools::kept_bytes_per_token() const {
  int64_t bytes = 0;
  for (int group = 0; group < groups(); ++group) {
    if (kept_forever(group)) bytes += pages_[static_cast<size_t>(group)]->block_bytes() / kPagePositions;
  }
  return bytes;
}

int64_t StatePools::restore_point_bytes() const {
  int64_t bytes = anchors_.block_bytes();
  for (int group = 0; group < groups(); ++group) {
    if (window(group) == 0) continue;
    bytes += chunks_for(window(group)) * pages_[static_cast<size_t>(group)]->block_bytes();
  }
  return bytes;
}

std::vector<SlotId> SequenceState::anchor_slots() const {
  std::vector<SlotId> slots;
  for (const Anchor& anchor : anchors_) slots.push_back(anchor.block.id());
  return slots;
}

}  // namespace weir
