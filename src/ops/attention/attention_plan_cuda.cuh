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

inline constexpr int kKeyTile = 64;  // positions

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
  // The same as a power of two.
  __device__ int piece_log(int p) const {
    const int n = window > 0 && window <= p ? static_cast<int>(window) : p + 1;
    const int ceil = 32 - __clz(n - 1);
    return (ceil > 14 ? ceil : 14) - 6 + (piece_factor == 2);
  }
  // Positions from p on have the same length of pieces up to here.
  __device__ int same_piece_end(int p) const {
    const int end = 64 << (piece_log(p) - (piece_factor == 2));
    return window > 0 && end >= window ? 0x7fffffff : end;
  }
  __device__ int first_visible(int p) const { return static_cast<int>(weir::first_visible(p, window)); }
};

struct AttentionEntry {
  int first_row, rows, position;  // in the batch; of the first row
};

struct AttentionBlock {
  int row, rows, position;
  int piece_log, first_piece, pieces;
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

// Calls part(position, rows) for the parts of an entry's rows whose pieces have one length.
template <class Part>
__device__ __forceinline__ void for_parts(const AttentionGeometry& g, const AttentionEntry& entry, Part part) {
  const int end = entry.position + entry.rows;
#pragma unroll 1
  for (int p = entry.position; p < end;) {
    const int change = g.same_piece_end(p), stop = change < end ? change : end;
    part(p, stop - p);
    p = stop;
  }
}

__device__ inline int pieces_of(const AttentionGeometry& g, int position, int rows) {
  const int log = g.piece_log(position);
  return ((position + rows - 1) >> log) - (g.first_visible(position) >> log) + 1;
}

__device__ inline int blocks_of(const AttentionGeometry& g, int rows) {
  return rows == 1 ? 1 : (rows + g.block_rows - 1) / g.block_rows;
}

__device__ inline EntrySize entry_size(const AttentionGeometry& g, const AttentionEntry& entry) {
  EntrySize size{0, 0};
  for_parts(g, entry, [&](int position, int rows) {
    const int pieces = pieces_of(g, position, rows);
    size.blocks += blocks_of(g, rows);
    size.pieces = pieces > size.pieces ? pieces : size.pieces;
  });
  return size;
}

// The block with this index.
__device__ inline AttentionBlock find_block(const AttentionGeometry& g, const AttentionEntry& entry, int index) {
  AttentionBlock found{};
  for_parts(g, entry, [&](int position, int rows) {
    const int blocks = blocks_of(g, rows);
    if (index >= 0 && index < blocks) {
      const int at = index * g.block_rows, log = g.piece_log(position);
      found.row = entry.first_row + position - entry.position + at;
      found.rows = rows - at < g.block_rows ? rows - at : g.block_rows;
      found.position = position + at;
      found.piece_log = log;
      found.first_piece = g.first_visible(found.position) >> log;
      found.pieces = pieces_of(g, found.position, found.rows);
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
#pragma unroll 1
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
  const int rounds = static_cast<int>(all_items + workers - 1) / static_cast<int>(workers);
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

// A unit as the threads see it that compute it.
struct AttentionWork {
  int index;                // of the unit; from plan.units on there is none
  int row, rows, position;  // of the block
  int kv_head, first_head, heads;
  int count;  // queries: rows times heads
  int slots;  // of its item; 1: it is whole
  int piece_log, first_piece;
  int first, last;  // positions
  int entry;

  __device__ bool whole() const { return slots == 1; }  // all that the rows see
  __device__ int first_tile() const { return first / kKeyTile * kKeyTile; }
  // Of the tile at this position:
  __device__ bool starts_piece(int tile) const { return tile == first_tile() || at_piece(tile); }
  __device__ bool ends_piece(int tile) const { return is_last(tile) || at_piece(tile + kKeyTile); }
  __device__ bool in_first_piece(int tile) const { return tile >> piece_log == first_piece; }
  __device__ bool is_last(int tile) const { return tile + kKeyTile > last; }

 private:
  __device__ bool at_piece(int at) const { return (at & ((1 << piece_log) - 1)) == 0; }
};

// The first unit from `index` on, in steps of `stride`, that has something to do.
__device__ inline AttentionWork find_work(const AttentionPlan& plan, const StepView& step, const SelectedRows& selected,
                                          const AttentionGeometry& g, int index, int stride) {
  AttentionWork work{};
  const int entries = attention_entries(step, selected);
#pragma unroll 1
  for (work.index = index; work.index < plan.units; work.index += stride) {
    int low = 0, high = kPlanChunks;  // the last chunk with before <= index that has units
#pragma unroll 1
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (plan.before[middle] <= work.index ? low : high) = middle;
    }
    int rest = work.index - plan.before[low];
    AttentionEntry entry{};
    EntrySize size{};
#pragma unroll 1
    for (work.entry = low * plan.chunk; work.entry < entries; ++work.entry) {
      entry = attention_entry(step, selected, work.entry);
      size = entry_size(g, entry);
      const int units = plan.units_of(g, size);
      if (rest < units) break;
      rest -= units;
    }
    work.slots = plan.split ? size.pieces : 1;
    const int item = rest / work.slots, piece = rest - item * work.slots;
    const int of = item / g.tiles(), tile = item - of * g.tiles();
    // The last rows of a span see the most: they come first.
    const AttentionBlock block = find_block(g, entry, size.blocks - 1 - of);
    if (!work.whole() && piece >= block.pieces) continue;
    work.row = block.row, work.rows = block.rows, work.position = block.position;
    work.kv_head = tile / g.head_groups;
    work.first_head = work.kv_head * g.q_per_kv + (tile - work.kv_head * g.head_groups) * g.tile_heads;
    const int heads_left = (work.kv_head + 1) * g.q_per_kv - work.first_head;
    work.heads = g.tile_heads < heads_left ? g.tile_heads : heads_left;
    work.count = work.rows * work.heads;
    work.piece_log = block.piece_log;
    work.first_piece = block.first_piece + piece;
    const int visible = g.first_visible(block.position), end = block.position + block.rows;
    const int from = work.first_piece << work.piece_log;
    const int to = (work.first_piece + (work.whole() ? block.pieces : 1)) << work.piece_log;
    work.first = visible > from ? visible : from;
    work.last = (end < to ? end : to) - 1;
    break;
  }
  return work;
}

__device__ inline const SpanView& span_of(const StepView& step, const SelectedRows& selected, int entry) {
  return step.spans[static_cast<size_t>(selected.list != nullptr ? step.row_spans[static_cast<size_t>(entry)] : entry)];
}

// By `threads` threads: an item's first unit says where the rows' pieces will be.
__device__ inline void note_rows(MergeRow* rows, const AttentionGeometry& g, const AttentionWork& work, int thread,
                                 int threads) {
  if (work.first_head != 0 || work.first_piece != g.first_visible(work.position) >> work.piece_log) return;
  const int pieces = pieces_of(g, work.position, work.rows);
#pragma unroll 1
  for (int i = thread; i < work.rows; i += threads) {
    rows[work.row + i] = {work.index, work.whole() ? 0 : work.slots, pieces, work.row};
  }
}

}  // namespace weir
