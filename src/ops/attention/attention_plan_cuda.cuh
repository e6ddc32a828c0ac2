// How the blocks of attention's tensor-core kernels find their work: from the step on the device, since grids know only
// bounds. No bit depends on it.
//
// An entry is a span, or a row that sees a list of positions. Its rows are cut into blocks of at most `block_rows` rows
// with pieces of one length; an item is a block times the heads of a tile. A unit is an item or, when there are too few
// items to keep the GPU busy, a piece of one: the pieces of all items are then left in memory, a slot for each unit,
// and merged by a second kernel.
#pragma once

#include "ops/attention/attention_cuda.h"
#include "ops/attention/paged_rows_cuda.cuh"

namespace weir {

struct AttentionGeometry {
  int32_t tile_heads = 1;   // heads of a tile, of one KV head
  int32_t head_groups = 1;  // tiles that it takes for the heads of a KV head
  int32_t block_rows = 1;
  int32_t q_per_kv = 1;
  int32_t kv_heads = 1;
  int32_t piece_factor = 1;
  int64_t window = 0;

  WEIR_HD int32_t tiles() const { return kv_heads * head_groups; }  // of a block
  WEIR_HD int64_t piece(int64_t p) const { return attention_piece(p, window) * piece_factor; }
  // Positions from p on have the same length of pieces up to here.
  WEIR_HD int64_t same_piece_end(int64_t p) const {
    const int64_t end = attention_piece(p, window) * 64;
    return window > 0 && end >= window ? int64_t{1} << 60 : end;
  }
};

// Of positions and rows, which have 31 bits: a division of 64 costs several times as much.
__device__ inline int quotient(int64_t a, int64_t b) {
  return static_cast<int>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b));
}

struct AttentionEntry {
  int first_row, rows, position;  // in the batch; of the first row
};

struct AttentionBlock {
  int row, rows, position;
  int piece, first_piece, pieces;
};

__device__ inline int attention_entries(const StepView& step, const SelectedRows& selected) {
  return selected.list != nullptr ? step.rows : static_cast<int>(step.spans.size());
}

__device__ inline AttentionEntry attention_entry(const StepView& step, const SelectedRows& selected, int entry) {
  if (selected.list != nullptr) return {entry, 1, selected.count[entry] - 1};
  const SpanView& span = step.spans[static_cast<size_t>(entry)];
  return {span.first_row, span.rows, static_cast<int>(span.first_position)};
}

// Blocks and most pieces of one of them.
struct EntrySize {
  int blocks, pieces;
};

// Calls part(position, rows, piece) for the parts of an entry's rows whose pieces have one length.
template <class Part>
__device__ __forceinline__ void for_parts(const AttentionGeometry& g, const AttentionEntry& entry, Part part) {
  const int64_t end = entry.position + entry.rows;
  for (int64_t p = entry.position; p < end;) {
    const int64_t change = g.same_piece_end(p), stop = change < end ? change : end;
    part(static_cast<int>(p), static_cast<int>(stop - p), static_cast<int>(g.piece(p)));
    p = stop;
  }
}

__device__ inline EntrySize entry_size(const AttentionGeometry& g, const AttentionEntry& entry) {
  EntrySize size{0, 0};
  for_parts(g, entry, [&](int position, int rows, int piece) {
    const int first = static_cast<int>(first_visible(position, g.window));
    const int pieces = quotient(position + rows - 1, piece) - quotient(first, piece) + 1;
    size.blocks += quotient(rows + g.block_rows - 1, g.block_rows);
    size.pieces = pieces > size.pieces ? pieces : size.pieces;
  });
  return size;
}

// The block with this index.
__device__ inline AttentionBlock find_block(const AttentionGeometry& g, const AttentionEntry& entry, int index) {
  AttentionBlock found{};
  for_parts(g, entry, [&](int position, int rows, int piece) {
    const int blocks = quotient(rows + g.block_rows - 1, g.block_rows);
    if (index >= 0 && index < blocks) {
      const int at = index * g.block_rows, first = position + at;
      found.row = entry.first_row + first - entry.position;
      found.rows = rows - at < g.block_rows ? rows - at : g.block_rows;
      found.position = first;
      found.piece = piece;
      found.first_piece = quotient(first_visible(first, g.window), piece);
      found.pieces = quotient(first + found.rows - 1, piece) - found.first_piece + 1;
    }
    index -= blocks;
  });
  return found;
}

// What a block of threads computes once, in shared memory.
// Entries are dealt to `kPlanChunks` chunks of consecutive ones.
inline constexpr int kPlanChunks = 128;
struct AttentionPlan {
  int32_t units;
  int32_t chunk;                         // entries of a chunk
  bool split;                            // units are pieces
  int32_t before[kPlanChunks];           // units of the chunks before
  int32_t items[4], pieces[4], most[4];  // of the warps' chunks, while it is made

  __device__ int units_of(const AttentionGeometry& g, const EntrySize& size) const {
    return size.blocks * g.tiles() * (split ? size.pieces : 1);
  }
};

// By the first kPlanChunks threads of a block; all threads call it. `workers` take units side by side.
__device__ inline void make_plan(AttentionPlan& plan, const StepView& step, const SelectedRows& selected,
                                 const AttentionGeometry& g, int64_t slots, int64_t workers) {
  const int entries = attention_entries(step, selected);
  const int chunk = (entries + kPlanChunks - 1) / kPlanChunks;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  int items = 0, pieces = 0, most = 0;
  if (thread < kPlanChunks) {
    for (int e = thread * chunk; e < (thread + 1) * chunk && e < entries; ++e) {
      const EntrySize size = entry_size(g, attention_entry(step, selected, e));
      items += size.blocks * g.tiles();
      pieces += size.blocks * g.tiles() * size.pieces;
      most = size.pieces > most ? size.pieces : most;
    }
    int items_to = items, pieces_to = pieces;
    for (int d = 1; d < 32; d *= 2) {
      const int i = __shfl_up_sync(cuda::kAllLanes, items_to, d), p = __shfl_up_sync(cuda::kAllLanes, pieces_to, d);
      const int m = __shfl_xor_sync(cuda::kAllLanes, most, d);
      if (lane >= d) items_to += i, pieces_to += p;
      most = m > most ? m : most;
    }
    if (lane == 31) plan.items[warp] = items_to, plan.pieces[warp] = pieces_to, plan.most[warp] = most;
    items = items_to - items;
    pieces = pieces_to - pieces;
  }
  __syncthreads();
  int64_t all_items = 0, all_pieces = 0;
  for (int w = 0; w < kPlanChunks / 32; ++w) {
    if (thread < kPlanChunks && w < warp) items += plan.items[w], pieces += plan.pieces[w];
    all_items += plan.items[w];
    all_pieces += plan.pieces[w];
    most = plan.most[w] > most ? plan.most[w] : most;
  }
  // Whole items when they take no more than a sixth longer than pieces, evenly shared out, would.
  const int64_t rounds = (all_items + workers - 1) / workers;
  const bool split = all_pieces <= slots && most > 1 && rounds * most * workers * 6 > all_pieces * 7;
  __syncthreads();
  if (thread < kPlanChunks) plan.before[thread] = split ? pieces : items;
  if (thread == 0) {
    plan.units = static_cast<int32_t>(split ? all_pieces : all_items);
    plan.chunk = chunk;
    plan.split = split;
  }
  __syncthreads();
}

// Where the pieces of a row were left; an entry's items have as many slots each as its largest one has pieces.
struct MergeRow {
  int32_t unit;   // the first of its block's first tile
  int32_t slots;  // of an item; 0: nothing is to be merged
  int32_t pieces;
  int32_t first_row;  // of its block
};

// What a unit is.
struct AttentionUnit {
  int entry;
  AttentionBlock block;
  int tile;                 // of the block: KV head times groups
  int slots;                // of its item; 1: it is whole
  int first_piece, pieces;  // of the sequence; pieces 0: nothing to do

  __device__ bool whole() const { return slots == 1; }  // all that the rows see
};

__device__ inline AttentionUnit find_unit(const AttentionPlan& plan, const StepView& step, const SelectedRows& selected,
                                          const AttentionGeometry& g, int unit) {
  int low = 0, high = kPlanChunks;  // the last chunk with before <= unit that has units
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (plan.before[middle] <= unit ? low : high) = middle;
  }
  const int entries = attention_entries(step, selected);
  int rest = unit - plan.before[low];
  AttentionUnit found{};
  for (int e = low * plan.chunk; e < entries; ++e) {
    const AttentionEntry entry = attention_entry(step, selected, e);
    const EntrySize size = entry_size(g, entry);
    const int units = plan.units_of(g, size);
    if (rest >= units) {
      rest -= units;
      continue;
    }
    const int parts = plan.split ? size.pieces : 1;
    const int piece = rest % parts, item = rest / parts;
    found.entry = e;
    found.tile = item % g.tiles();
    // The last rows of a span see the most: they come first.
    found.block = find_block(g, entry, size.blocks - 1 - item / g.tiles());
    found.slots = parts;
    found.first_piece = found.block.first_piece + piece;
    found.pieces = found.whole() ? found.block.pieces : piece < found.block.pieces;
    break;
  }
  return found;
}

__device__ inline const SpanView& span_of(const StepView& step, const SelectedRows& selected,
                                          const AttentionUnit& unit) {
  const int span = selected.list != nullptr ? step.row_spans[static_cast<size_t>(unit.entry)] : unit.entry;
  return step.spans[static_cast<size_t>(span)];
}

// By `threads` threads of a block: an item's first unit says where the rows' pieces are.
__device__ inline void note_rows(MergeRow* rows, const AttentionUnit& unit, int index, int thread, int threads) {
  const AttentionBlock& block = unit.block;
  if (unit.tile != 0 || unit.first_piece != block.first_piece) return;
  for (int i = thread; i < block.rows; i += threads) {
    rows[block.row + i] = {index, unit.whole() ? 0 : unit.slots, block.pieces, block.row};
  }
}

}  // namespace weir
