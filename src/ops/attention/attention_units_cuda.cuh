// How the workers of attention's tensor-core kernels come to their units.
#pragma once

#include "ops/attention/attention_mma.h"

namespace weir {

// What a unit is: the unit-th one of a block, or all of it, for the heads of a tile. False: the block has fewer.
__device__ __forceinline__ bool place_unit(AttentionWork& work, const AttentionGeometry& g, const AttentionBlock& block,
                                           int unit_log, int tile, int unit) {
  const int end_piece = block.first_piece + block.pieces;
  work.first_unit = block.first_piece >> unit_log;
  work.units = ((end_piece - 1) >> unit_log) - work.first_unit + 1;
  if (unit >= work.units) return false;
  work.row = block.row, work.rows = block.rows, work.position = block.position;
  work.kv_head = tile / g.head_groups;
  work.first_head = work.kv_head * g.q_per_kv + (tile - work.kv_head * g.head_groups) * g.tile_heads;
  const int heads_left = (work.kv_head + 1) * g.q_per_kv - work.first_head;
  work.heads = g.tile_heads < heads_left ? g.tile_heads : heads_left;
  work.count = work.rows * work.heads;
  work.piece_log = block.piece_log;
  work.first_piece = block.first_piece;
  int unit_end = end_piece;
  if (!work.whole()) {
    const int begin = (work.first_unit + unit) << unit_log, stop = begin + (1 << unit_log);
    work.first_piece = begin > work.first_piece ? begin : work.first_piece;
    unit_end = stop < end_piece ? stop : end_piece;
  }
  const int visible = g.first_visible(block.position), end = block.position + block.rows;
  const int from = work.first_piece << work.piece_log, to = unit_end << work.piece_log;
  work.first = visible > from ? visible : from;
  work.last = (end < to ? end : to) - 1;
  return true;
}

// The units of any step, after make_plan.
struct PlannedUnits {
  const AttentionPlan& plan;
  const StepView& step;
  const SelectedRows& selected;
  const AttentionGeometry& g;

  // Not the place of one piece of many: a worker has one for all its units then.
  __device__ bool split() const { return plan.unit_log != kWhole; }

  // The first unit from `index` on, in steps of `stride`, that has something to do.
  __device__ AttentionWork find(int index, int stride) {
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
        size = entry_size(g, entry, plan.unit_log);
        const int units = size.blocks * g.tiles() * size.units;
        if (rest < units) break;
        rest -= units;
      }
      work.slots = size.units;
      const int item = rest / work.slots, unit = rest - item * work.slots;
      const int of = item / g.tiles(), tile = item - of * g.tiles();
      // The last rows of a span see the most: they come first.
      const AttentionBlock block = find_block(g, entry, size.blocks - 1 - of);
      if (place_unit(work, g, block, plan.unit_log, tile, unit)) return work;
    }
    work.index = AttentionWork::kNone;
    return work;
  }
};

// The units of a step in which every span has one row. Each warp finds them by itself, without a plan in shared memory:
// a lane for a row.
class SingleUnits {
 public:
  __device__ SingleUnits(const StepView& step, const AttentionGeometry& g, int64_t slots, int workers)
      : positions_(step.positions.data()), rows_(step.rows), g_(g) {
    int most = 0, units[kMostUnitLogs] = {};
#pragma unroll 1
    for (int first = 0; first < rows_; first += 32) {
      const int p = position(first);
      if (p < 0) continue;
#pragma unroll
      for (int log = 0; log < kMostUnitLogs; ++log) units[log] += pieces_of(g, p, 1, log);
      const int pieces = pieces_of(g, p, 1);
      most = pieces > most ? pieces : most;
    }
    __syncwarp();
    most = __reduce_max_sync(cuda::kAllLanes, most);
    int of_lane = 0;
#pragma unroll
    for (int log = 0; log < kMostUnitLogs; ++log) {
      const int all = __reduce_add_sync(cuda::kAllLanes, units[log]) * g.tiles();
      if (static_cast<int>(threadIdx.x) % 32 == log) of_lane = all;
    }
    unit_log_ = choose_units(g, rows_ * g.tiles(), most, of_lane, slots, workers);
  }

  __device__ bool split() const { return unit_log_ != kWhole; }

  // Indexes ascend from call to call.
  __device__ AttentionWork find(int index, int) {
    AttentionWork work{};
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (; first_ < rows_; first_ += 32) {
      const int p = position(first_), slots = p < 0 ? 0 : pieces_of(g_, p, 1, unit_log_), own = slots * g_.tiles();
      int to = own;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int before = __shfl_up_sync(cuda::kAllLanes, to, d);
        if (lane >= d) to += before;
      }
      const int all = __shfl_sync(cuda::kAllLanes, to, 31);
      if (index - before_ >= all) {
        before_ += all;
        continue;
      }
      const int of = __popc(__ballot_sync(cuda::kAllLanes, before_ + to <= index));
      work.index = index;
      work.entry = first_ + of;
      work.slots = __shfl_sync(cuda::kAllLanes, slots, of);
      const int rest = index - before_ - __shfl_sync(cuda::kAllLanes, to - own, of), tile = rest / work.slots;
      AttentionBlock block{.row = work.entry, .rows = 1, .position = __shfl_sync(cuda::kAllLanes, p, of)};
      block.piece_log = g_.piece_log(block.position);
      block.first_piece = g_.first_visible(block.position) >> block.piece_log;
      block.pieces = pieces_of(g_, block.position, 1);
      place_unit(work, g_, block, unit_log_, tile, rest - tile * work.slots);
      return work;
    }
    work.index = AttentionWork::kNone;
    return work;
  }

 private:
  // Of this lane's row among those from `first` on, -1 if there is none.
  __device__ int position(int first) const {
    const int row = first + static_cast<int>(threadIdx.x) % 32;
    return row < rows_ ? static_cast<int>(positions_[row]) : -1;
  }

  const int64_t* positions_;
  int rows_;
  const AttentionGeometry& g_;
  int unit_log_;
  int first_ = 0, before_ = 0;  // the rows that are looked at, units of those before
};

}  // namespace weir
