// What an op sees of a step: rows, spans, pages and anchors, as plain structs without ownership.
//
// A row is one position computed in this step. A span is consecutive rows of one sequence. State is read and written
// through pools of equal blocks: pages hold what 16 consecutive positions contribute to a group of layers, an anchor
// holds the recurrent state of all linear layers at a multiple of 16 (docs/architecture.md 1.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/host_device.h"

namespace weir {

inline constexpr int64_t kPagePositions = 16;
inline constexpr int kMaxPageGroups = 4;

enum class PageId : uint32_t {};
inline constexpr PageId kNoPage{0xffffffffu};

enum class SlotId : uint32_t {};                   // an anchor's place in the anchor pool
inline constexpr SlotId kZeroAnchor{0xffffffffu};  // position 0: all zeros, never read

// Equal blocks in one mapping; block i starts at base + i * block_bytes.
struct PoolView {
  std::byte* base = nullptr;
  int64_t block_bytes = 0;

  WEIR_HD std::byte* block(PageId id) const { return base + static_cast<int64_t>(id) * block_bytes; }
  WEIR_HD std::byte* block(SlotId id) const { return base + static_cast<int64_t>(id) * block_bytes; }
};

// Where a layer's rows lie in the pages of a group: row of position p is
// pools[group].block(page_table[p / 16]) + offset + (p % 16) * row_bytes.
struct PageField {
  int group = 0;
  int64_t offset = 0;
  int64_t row_bytes = 0;
};

// Where a layer's part lies in an anchor.
struct AnchorField {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// The anchor at `position` (a multiple of 16, the state after rows [0, position)) is to be written to `slot`.
struct AnchorWrite {
  int64_t position = 0;
  SlotId slot = kZeroAnchor;
};

struct SpanView {
  int32_t first_row = 0;       // in the batch
  int32_t rows = 0;            // >= 1
  int64_t first_position = 0;  // of first_row in its sequence

  // By page group, indexed by position / 16. Groups with retention "journal" have kNoPage for chunks that nobody will
  // read again: ops then keep that chunk's rows in scratch.
  std::span<const PageId> pages[kMaxPageGroups];

  // The anchor that the first row starts from: at floor16(first_position), or 16 positions before when first_position
  // is a multiple of 16 whose anchor has not been made yet (its full journal page is then in the table).
  SlotId anchor = kZeroAnchor;
  int64_t anchor_position = 0;

  // Anchors that this step must write, positions ascending; each is a multiple of 16, above anchor_position and at most
  // the span's last position. The last boundary that the span crosses is always among them.
  std::span<const AnchorWrite> anchor_writes;

  WEIR_HD int64_t last_position() const { return first_position + rows - 1; }
};

struct StepView {
  int32_t rows = 0;
  std::span<const SpanView> spans;       // in row order, covering all rows
  std::span<const int32_t> tokens;       // [rows]
  std::span<const int64_t> positions;    // [rows]
  std::span<const int32_t> row_spans;    // [rows] index into spans
  std::span<const int32_t> logit_rows;   // rows that want logits, ascending
  std::span<const PoolView> page_pools;  // by group
  PoolView anchor_pool;
};

}  // namespace weir
