// Products of experts with few rows: a warp multiplies whole strips, one after the other, with all rows of a tile of
// pairs (linear_tile_cuda.cuh has the numeric specification).
//
// Blocks share the strips of all tiles out evenly. Each warp has a ring of weights that runs ahead over strips and
// experts; one more warp brings the rows of the block's tiles of pairs, as many as its shared memory holds. With few
// strips a warp takes one segment of a strip, and the one with the first adds them up.
#pragma once

#include <type_traits>

#include "ops/moe/moe_few.h"
#include "ops/moe/moe_rows_cuda.cuh"
#include "ops/moe/moe_small_plan_cuda.cuh"

namespace weir {

// Warps that multiply.
template <int kMostColumns>
inline constexpr int kFewWarps = kMostColumns == 1 ? 8 : 11;
template <int kMostColumns>
inline constexpr int kFewBlocks = kMostColumns == 1 ? 2 : 1;  // of a multiprocessor

// The first `count` tiles of a stage, at least one, with one column: a tile is read while the one before is multiplied.
template <class Operand, int kTiles>
__device__ inline void multiply_stage(const std::byte* tiles, int count, const RowFragments<1>& x, Sums<1>& sums) {
  Operand w(tiles);
  LoadedRows loaded(x);
#pragma unroll
  for (int t = 1; t < kTiles; ++t) {
    if (t >= count) break;
    const Operand next(tiles + t * Operand::kBytes);
    const LoadedRows next_loaded(x.tile(t));
    multiply_tile(w, loaded, sums);
    w = next;
    loaded = next_loaded;
  }
  multiply_tile(w, loaded, sums);
}
template <class Operand, int kTiles, int kColumns>
__device__ inline void multiply_stage(const std::byte* tiles, int count, const RowFragments<kColumns>& x,
                                      Sums<kColumns>& sums) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (t >= count) break;
    multiply_tile<Operand>(tiles + t * Operand::kBytes, x.tile(t), sums);
  }
}

// The sums of a warp's part of a strip.
template <int kMostTiles, class Operand, int kColumns>
__device__ inline Sums<kColumns> multiply_part(StripRing<Operand>& ring, const ExpertTiles& experts,
                                               const FewLaunch& launch, RowFragments<kColumns> x) {
  Sums<kColumns> total;
  total.clear();
  for (int segments = launch.part_segments; segments > 0; --segments) {
    Sums<kColumns> sums;
    sums.clear();
    for (int left = experts.segment_tiles; left > 0; left -= launch.stage_tiles) {
      const int count = left < launch.stage_tiles ? left : launch.stage_tiles;
      multiply_stage<Operand, kMostTiles>(ring.acquire(), count, x, sums);
      x = x.tile(count);
      ring.release();
    }
    total.add(sums);
  }
  return total;
}

// Leaves a part's sums for the warp with the first part, which adds them to its own in order. True for that one.
// `left` has room for two strips of each warp.
__device__ inline bool add_parts(Sums<1>& sums, float4* left, int turn, const StripRange& range) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_index();
  float4* mine = left + (warp * 2 + turn) * 32 + lane;
  float(&v)[4] = sums.value[0];
  if (range.part > 0) *mine = {v[0], v[1], v[2], v[3]};
  cuda::ptx::named_barrier_sync(1 + range.group, range.parts * 32);
  if (range.part > 0) return false;
  for (int p = 1; p < range.parts; ++p) {
    const float4 other = mine[p * 64];
    v[0] += other.x, v[1] += other.y, v[2] += other.z, v[3] += other.w;
  }
  return true;
}

template <class Operand, int kMostColumns>
__device__ inline void multiply_strips(const ExpertProduct& args, const FewLaunch& launch, const PairPlan& plan,
                                       const StripRange& range, std::byte* ring_memory, const RowStore& store,
                                       float4* left) {
  StripRing<Operand> ring(ring_memory, args, launch, plan.tiles, range);
  if (args.planned_before) cuda::ptx::wait_for_previous();
  bring_first_rows(args, plan, range, store);
  const int first_byte = range.part * launch.part_segments * args.experts.segment_tiles * 128;
  StripCursor at(range);
  int slot = 0, turn = 0;
  for (int t = range.first_tile; t < range.end_tile; ++t) {
    const PairTile tile = plan.tiles[t];
    const int place = (t - range.first_tile) % kTilesAhead;
    cuda::ptx::mbarrier_wait(store.full + place, RowStore::parity(t - range.first_tile));
    const auto multiply = [&]<int kColumns>(std::integral_constant<int, kColumns>) {
      const RowFragments<kColumns> x(store, slot, tile.rows, first_byte);
      for (; at.item < range.end && at.tile == t; at.advance(range), turn ^= 1) {
        Sums<kColumns> sums = multiply_part<kMostStageTiles<Operand, kMostColumns>>(ring, args.experts, launch, x);
        if constexpr (kMostColumns == 1) {
          if (range.parts > 1 && !add_parts(sums, left, turn, range)) continue;
        }
        args.out.store(tile, plan.pairs + tile.first, at.strip, sums.value);
      }
    };
    if (kMostColumns == 1 || tile.rows <= 8) {
      multiply(std::integral_constant<int, 1>{});
    } else if constexpr (kMostColumns > 1) {
      if (tile.rows <= 16) {
        multiply(std::integral_constant<int, 2>{});
      } else {
        multiply(std::integral_constant<int, 4>{});
      }
    }
    __syncwarp();
    if (lane_index() == 0) cuda::ptx::mbarrier_arrive(store.empty + place);
    slot = store.after(slot, tile.rows);
  }
}

template <class Operand, int kMostColumns>
__global__ void __launch_bounds__((kFewWarps<kMostColumns> + 1) * 32, kFewBlocks<kMostColumns>)
    multiply_few(const __grid_constant__ ExpertProduct args, const __grid_constant__ FewLaunch launch,
                 const StepView* step) {
  constexpr int kWarps = kFewWarps<kMostColumns>;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  __shared__ uint64_t barriers[2 * kTilesAhead];
  __shared__ SmallPlan small;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t ring = few_ring_bytes(launch.stages, launch.stage_tiles * Operand::kBytes);
  std::byte* left = shared + kWarps * ring;
  const RowStore store{left + (launch.parts.by > 1 ? kWarps * kPartBytes : 0), barriers, barriers + kTilesAhead,
                       launch.row_slots, row_stride(args.experts.width())};
  if (threadIdx.x == 0) store.init(kWarps);
  if (!args.planned_before) cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  PairPlan plan = args.plan;
  if (plan.tiles == nullptr) {
    small.make(args, step);
    plan = small.view();
  } else {
    __syncthreads();
  }
  const StripRange range(launch, *plan.tile_count, kWarps);
  if (range.first == range.end) return;
  if (warp < kWarps) {
    return multiply_strips<Operand, kMostColumns>(args, launch, plan, range, shared + warp * ring, store,
                                                  reinterpret_cast<float4*>(left));
  }
  if (args.planned_before) cuda::ptx::wait_for_previous();
  bring_first_rows(args, plan, range, store);
  bring_rows(args, plan, range, store);
}

template <TileFormat kFormat>
FewKernel few_kernel_of(bool one_column) {
  using Operand = typename OperandOf<kFormat>::Type;
  const auto kernel = [&]<int kColumns>(std::integral_constant<int, kColumns>) -> FewKernel {
    return {multiply_few<Operand, kColumns>, kFewWarps<kColumns>, kFewBlocks<kColumns>,
            kMostStageTiles<Operand, kColumns>, kRingTiles<Operand, kColumns>};
  };
  return one_column ? kernel(std::integral_constant<int, 1>{}) : kernel(std::integral_constant<int, 4>{});
}

}  // namespace weir
