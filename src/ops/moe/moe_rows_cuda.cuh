// Rows of tiles of pairs in shared memory, for experts with few rows (moe_few_cuda.cuh): how they come there, and how
// products read them.
#pragma once

#include "ops/moe/moe_strips_cuda.cuh"

namespace weir {

inline constexpr int kTilesAhead = 4;  // tiles of pairs whose rows are there or on their way

// Bytes of a row in shared memory: eight rows at the same k lie in different banks.
WEIR_HD inline int row_stride(int64_t width) { return static_cast<int>(width) * 2 + 16; }

// The rows of a block's tiles of pairs in shared memory. Tile n of the block takes the next slots.
struct RowStore {
  std::byte* rows;
  uint64_t* full;   // [kTilesAhead]
  uint64_t* empty;  // [kTilesAhead]
  int32_t slots;
  int32_t stride;

  __device__ void init(int readers) const {
    for (int i = 0; i < kTilesAhead; ++i) {
      cuda::ptx::mbarrier_init(full + i, 1);
      cuda::ptx::mbarrier_init(empty + i, readers);
    }
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ std::byte* slot(int32_t first, int32_t row) const {
    const int32_t at = first + row;
    return rows + (at < slots ? at : at - slots) * stride;
  }
  __device__ int32_t after(int32_t first, int32_t count) const {
    const int32_t at = first + count;
    return at < slots ? at : at - slots;
  }
  __device__ static int parity(int n) { return n / kTilesAhead % 2; }
};

// Rows of FP32 to their slots, by some threads; each takes every `step`-th eight of a row.
__device__ inline void round_rows(const ExpertProduct& args, const PairPlan& plan, const PairTile& tile,
                                  const RowStore& store, int32_t slot, int thread, int step) {
  constexpr int kBatch = 3;
  const int eights = static_cast<int>(args.experts.width() / 8);
#pragma unroll 1
  for (int r = 0; r < tile.rows; ++r) {
    const int64_t row = plan.pairs[tile.first + r] / args.x.pairs_per_row;
    const float* x = args.x.exact + row * args.x.exact_stride;
    auto* to = reinterpret_cast<uint4*>(store.slot(slot, r));
    const int whole = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? static_cast<int>(args.x.in / 8) : 0;
#pragma unroll 1
    for (int first = thread; first < eights; first += step * kBatch) {
      float4 low[kBatch], high[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + step * i;
        if (at >= whole) continue;
        low[i] = reinterpret_cast<const float4*>(x)[2 * at];
        high[i] = reinterpret_cast<const float4*>(x)[2 * at + 1];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + step * i;
        if (at < eights) to[at] = at < whole ? pack_eight(low[i], high[i]) : round_eight(x, int64_t{at} * 8, args.x.in);
      }
    }
  }
}

// By a warp: the rows of the tiles that the block's strips belong to. Those of the first tile that have to be rounded
// are the whole block's to bring.
// racecheck rows: `full` hands rows over, by one lane behind __syncwarp, and `empty` gives their slots back; the tool
// misses that.
__device__ inline void bring_rows(const ExpertProduct& args, const PairPlan& plan, const StripRange& range,
                                  const RowStore& store) {
  const int lane = lane_index();
  const int first = range.first_tile, end = range.end_tile;
  const bool exact = args.x.exact != nullptr;
  int oldest = first, used = 0, slot = 0;
#pragma unroll 1
  for (int t = first; t < end; ++t) {
    const PairTile tile = plan.tiles[t];
    while (used + tile.rows > store.slots || t - oldest == kTilesAhead) {
      cuda::ptx::mbarrier_wait(store.empty + (oldest - first) % kTilesAhead, RowStore::parity(oldest - first));
      used -= plan.tiles[oldest++].rows;
    }
    uint64_t* full = store.full + (t - first) % kTilesAhead;
    if (exact) {
      if (t > first) round_rows(args, plan, tile, store, slot, lane, 32);
      __syncwarp();
      if (lane == 0) cuda::ptx::mbarrier_arrive(full);
    } else {
      const int64_t width = args.experts.width();
      const int bytes = static_cast<int>(width) * 2;
      if (lane == 0) cuda::ptx::mbarrier_arrive_expect(full, tile.rows * bytes);
      __syncwarp();
      if (lane < tile.rows) {
        const int64_t row = plan.pairs[tile.first + lane] / args.x.pairs_per_row;
        cuda::ptx::bulk_load(store.slot(slot, lane), args.x.rounded + row * width, bytes, full);
      }
    }
    used += tile.rows;
    slot = store.after(slot, tile.rows);
  }
}

// Before bring_rows and multiply_strips, by the whole block.
__device__ inline void bring_first_rows(const ExpertProduct& args, const PairPlan& plan, const StripRange& range,
                                        const RowStore& store) {
  if (args.x.exact == nullptr) return;
  const PairTile tile = plan.tiles[range.first_tile];
  round_rows(args, plan, tile, store, 0, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  __syncthreads();
}

// B fragments from rows that lie side by side, as SharedX has them. Columns without a row take another's: nobody looks
// at their sums.
template <int kColumns>
struct RowFragments {
  uint32_t at[kColumns];

  __device__ RowFragments(const RowStore& store, int32_t slot, int32_t rows, int first_byte) {
    const int lane = lane_index();
    for (int c = 0; c < kColumns; ++c) {
      const int32_t row = c * 8 + lane % 8;
      at[c] = cuda::ptx::shared_address(store.slot(slot, row < rows ? row : 0)) + first_byte + lane / 8 * 16;
    }
  }
  __device__ void load(int c, int pair, uint32_t (&b)[4]) const { cuda::ptx::load_matrix_x4(b, at[c] + pair * 64); }
  __device__ RowFragments tile(int t) const {
    RowFragments moved = *this;
    for (uint32_t& a : moved.at) a += t * 128;
    return moved;
  }
};

// A tile's fragments in registers.
struct LoadedRows {
  uint32_t fragments[2][4];

  __device__ explicit LoadedRows(const RowFragments<1>& x) {
    for (int pair = 0; pair < 2; ++pair) x.load(0, pair, fragments[pair]);
  }
  __device__ void load(int, int pair, uint32_t (&b)[4]) const {
    for (int i = 0; i < 4; ++i) b[i] = fragments[pair][i];
  }
};

}  // namespace weir
