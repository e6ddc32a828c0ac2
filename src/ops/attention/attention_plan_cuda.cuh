// How the blocks of attention's tensor-core kernels find their work: from the step on the device, since grids know only
// bounds. No bit depends on it.
//
// An entry is a span, or a row that sees a list of positions. Its rows are cut into blocks of at most `block_rows` rows
// with pieces of one length; an item is a block times the heads of a tile. A unit is an item or, when there are too few
// items to keep the GPU busy, a piece of one, or 2, 4, 8 ... pieces where these are merged as a tree: what units have
// made of their pieces is then left in memory, a slot for each unit, and merged by a second kernel.
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
  int32_t piece_shift = 0;  // pieces are longer by this power of two
  int32_t unit_logs = 1;    // units that aren't items have 2^i pieces, i below this
  int64_t window = 0;

  WEIR_HD int32_t tiles() const { return kv_heads * head_groups; }  // of a block
  WEIR_HD int64_t piece(int64_t p) const { return attention_piece(p, window) << piece_shift; }
  // The same as a power of two.
  __device__ int piece_log(int p) const {
    const int n = window > 0 && window <= p ? static_cast<int>(window) : p + 1;
    const int ceil = 32 - __clz(n - 1);
    return (ceil > 14 ? ceil : 14) - 6 + piece_shift;
  }
  // Positions from p on have the same length of pieces up to here.
  __device__ int same_piece_end(int p) const {
    const int end = 64 << (piece_log(p) - piece_shift);
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

inline constexpr int kMostUnitLogs = 6;
inline constexpr int kWhole = 31;  // a unit_log: all pieces

// Blocks of an entry, and most pieces and units of one of them.
struct EntrySize {
  int blocks, pieces, units;
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

// Pieces, or what 2^unit_log of them make a unit.
__device__ inline int pieces_of(const AttentionGeometry& g, int position, int rows, int unit_log = 0) {
  const int log = g.piece_log(position);
  return ((position + rows - 1) >> log >> unit_log) - (g.first_visible(position) >> log >> unit_log) + 1;
}

__device__ inline int blocks_of(const AttentionGeometry& g, int rows) {
  return rows == 1 ? 1 : (rows + g.block_rows - 1) / g.block_rows;
}

__device__ inline EntrySize entry_size(const AttentionGeometry& g, const AttentionEntry& entry, int unit_log) {
  EntrySize size{};
  for_parts(g, entry, [&](int position, int rows) {
    const int pieces = pieces_of(g, position, rows), units = pieces_of(g, position, rows, unit_log);
    size.blocks += blocks_of(g, rows);
    size.pieces = pieces > size.pieces ? pieces : size.pieces;
    size.units = units > size.units ? units : size.units;
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
  int32_t chunk;                // entries of a chunk
  int32_t unit_log;             // units have so many pieces, as a power of two
  int32_t before[kPlanChunks];  // units of the chunks before
  // While it is made, of the warps' chunks: items, most pieces, and units by unit_log.
  struct {
    int32_t items, most, units[kMostUnitLogs], chosen;
  } warps[kPlanChunks / 32];
};

// How long `workers` take, in eighths of a piece: a unit costs a quarter of one by itself.
__device__ inline int plan_time(int units, int pieces, int workers) {
  return (units + workers - 1) / workers * (pieces * 8 + 2);
}

// The unit_log for so many items, of which the largest has `most` pieces. By a whole warp: lane i knows the units that
// they would make with unit_log i.
__device__ inline int choose_units(const AttentionGeometry& g, int items, int most, int units, int64_t slots,
                                   int workers) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int time = 1 << 25;
  if (lane < g.unit_logs && most >> lane > 0 && most > 1 && units <= slots) {
    time = plan_time(units, 1 << lane, workers) * 7;
  }
  // Whole items when they take no more than a sixth longer than other units.
  const int whole = plan_time(items, most, workers) * 6;
  const int best = __reduce_min_sync(cuda::kAllLanes, (time < 1 << 25 ? time : 1 << 25) * 32 + lane);
  return whole <= best / 32 ? kWhole : best % 32;
}

// By the first kPlanChunks threads of a block; all threads call it. `workers` take units side by side.
__device__ inline void make_plan(AttentionPlan& plan, const StepView& step, const SelectedRows& selected,
                                 const AttentionGeometry& g, int64_t slots, int workers) {
  const int entries = attention_entries(step, selected);
  const int chunk = (entries + kPlanChunks - 1) / kPlanChunks;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const auto for_chunk = [&](auto take) {
    for (int e = thread * chunk; e < (thread + 1) * chunk && e < entries; ++e) {
      take(attention_entry(step, selected, e));
    }
  };
  if (thread < kPlanChunks) {
    int items = 0, most = 0, units[kMostUnitLogs] = {};
    for_chunk([&](const AttentionEntry& entry) {
#pragma unroll
      for (int log = 0; log < kMostUnitLogs; ++log) {
        if (log >= g.unit_logs) break;
        const EntrySize size = entry_size(g, entry, log);
        units[log] += size.blocks * g.tiles() * size.units;
        if (log > 0) continue;
        items += size.blocks * g.tiles();
        most = size.pieces > most ? size.pieces : most;
      }
    });
    auto& of_warp = plan.warps[warp];
    const auto sum = [](int x) {
#pragma unroll
      for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(cuda::kAllLanes, x, d);
      return x;
    };
#pragma unroll
    for (int log = 0; log < kMostUnitLogs; ++log) {
      if (log >= g.unit_logs) break;
      units[log] = sum(units[log]);
      if (lane == 0) of_warp.units[log] = units[log];
    }
    items = sum(items);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const int m = __shfl_xor_sync(cuda::kAllLanes, most, d);
      most = m > most ? m : most;
    }
    if (lane == 0) of_warp.items = items, of_warp.most = most;
  }
  __syncthreads();
  int items = 0, most = 0;
  for (const auto& w : plan.warps) items += w.items, most = w.most > most ? w.most : most;
  int units_of_log = 0;
  if (lane < g.unit_logs) {
    for (const auto& w : plan.warps) units_of_log += w.units[lane];
  }
  const int unit_log = choose_units(g, items, most, units_of_log, slots, workers);
  int units = 0;
  if (thread < kPlanChunks) {
    for_chunk([&](const AttentionEntry& entry) {
      const EntrySize size = entry_size(g, entry, unit_log);
      units += size.blocks * g.tiles() * size.units;
    });
    int to = units;
#pragma unroll 1
    for (int d = 1; d < 32; d *= 2) {
      const int before = __shfl_up_sync(cuda::kAllLanes, to, d);
      if (lane >= d) to += before;
    }
    if (lane == 31) plan.warps[warp].chosen = to;
    units = to - units;
  }
  __syncthreads();
  int all = 0;
  for (int w = 0; w < kPlanChunks / 32; ++w) {
    if (w < warp) units += plan.warps[w].chosen;
    all += plan.warps[w].chosen;
  }
  if (thread < kPlanChunks) plan.before[thread] = units;
  if (thread == 0) {
    plan.units = all;
    plan.chunk = chunk;
    plan.unit_log = unit_log;
  }
  __syncthreads();
}

// Where the units of a row were left; an entry's items have as many slots each as its largest one has units.
struct MergeRow {
  int32_t unit;        // the first of its block's first tile
  int32_t slots;       // of an item; 0: nothing is to be merged
  int32_t units;       // of its block
  int32_t first_unit;  // counted from position 0
  int32_t first_row;   // of its block
  int32_t queries;     // of a tile
};

// A unit as the threads see it that compute it.
struct AttentionWork {
  static constexpr int kNone = 0x7fffffff;

  int index;                // of the unit; kNone: there is none
  int row, rows, position;  // of the block
  int kv_head, first_head, heads;
  int count;              // queries: rows times heads
  int slot;               // what it makes of its pieces is left there
  int slots;              // of its item; 1: it is whole
  int units, first_unit;  // of the block, and its first one counted from position 0
  int piece_log, first_piece;
  int first, last;  // positions
  int entry;

  __device__ bool none() const { return index == kNone; }
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

__device__ inline const SpanView& span_of(const StepView& step, const SelectedRows& selected, int entry) {
  return step.spans[static_cast<size_t>(selected.list != nullptr ? step.row_spans[static_cast<size_t>(entry)] : entry)];
}

// By `threads` threads: an item's first unit says where the rows' pieces will be.
__device__ inline void note_rows(MergeRow* rows, const AttentionGeometry& g, const AttentionWork& work, int thread,
                                 int threads) {
  if (work.first_head != 0 || work.first_piece != g.first_visible(work.position) >> work.piece_log) return;
#pragma unroll 1
  for (int i = thread; i < work.rows; i += threads) {
    rows[work.row + i] = {work.index, work.whole() ? 0 : work.slots, work.units, work.first_unit, work.row, work.count};
  }
}

}  // namespace weir
