// The plan of a step of few pairs, which every block makes for itself in shared memory: that is sooner done than a
// launch.
#pragma once

#include "ops/moe/moe_cuda.cuh"

namespace weir {

struct SmallPlan {
  alignas(16) int32_t ids[kMostSmallPairs];  // of the pairs; the last four are padded
  int32_t tiles_of[kMostSmallPairs];         // of a pair that is its expert's first: the expert's tiles
  PairTile tiles[kMostSmallPairs];
  int32_t pairs[kMostSmallPairs];
  int32_t tile_count;

  __device__ PairPlan view() { return {&tile_count, tiles, pairs}; }

  // By the whole block, of at least kMostSmallPairs threads.
  __device__ void make(const ExpertProduct& args, const StepView* step) {
    const int pair = static_cast<int>(threadIdx.x);
    // At the same time as the rows; past L1, which may be older than ids when the launch before is not waited for.
    const int32_t read = pair < args.most_pairs ? __ldcg(args.ids + pair) : 0;
    const int32_t count = step->rows * args.top_k, tile_rows = args.tile_rows;
    const bool live = pair < count;
    if (count == args.top_k) {  // one row: its experts differ
      if (live) {
        pairs[pair] = pair;
        tiles[pair] = {read, pair, 1};
      }
      if (pair == 0) tile_count = count;
      __syncthreads();
      return;
    }
    const int32_t id = live ? read : INT32_MAX;
    if (pair < kMostSmallPairs) ids[pair] = id;
    __syncthreads();
    const int padded = (count + 3) / 4 * 4;
    int32_t before = 0, rank = 0, all = 0;  // pairs of lower experts; of this one, earlier rows'; all of this one
    if (live) {
#pragma unroll 1
      for (int at = 0; at < padded; at += 4) {
        const int4 four = *reinterpret_cast<const int4*>(ids + at);
        const int32_t other[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          before += other[i] < id;
          all += other[i] == id;
          rank += other[i] == id && at + i < pair;
        }
      }
    }
    if (pair < kMostSmallPairs) tiles_of[pair] = live && rank == 0 ? (all + tile_rows - 1) / tile_rows : 0;
    __syncthreads();
    if (live) {
      int32_t first = 0;
#pragma unroll 4
      for (int other = 0; other < count; ++other) first += ids[other] < id ? tiles_of[other] : 0;
      pairs[before + rank] = pair;
      if (rank % tile_rows == 0) {
        const int32_t left = all - rank;
        tiles[first + rank / tile_rows] = {id, before + rank, left < tile_rows ? left : tile_rows};
      }
      if (rank == 0 && before + all == count) tile_count = first + tiles_of[pair];
    }
    if (count == 0 && pair == 0) tile_count = 0;
    __syncthreads();
  }
};

}  // namespace weir
