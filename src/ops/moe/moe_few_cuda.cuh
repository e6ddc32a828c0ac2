// Products of experts with few rows: a warp multiplies whole strips, one after the other, with up to 32 rows whose
// fragments it reads from memory (linear_tile_cuda.cuh has the numeric specification and the ring).
//
// A block's warps work on neighbouring strips, mostly of one expert: its rows of x are read from memory once and then
// from the L1 cache. The rings run ahead over strips and experts, so the weights arrive without a pause.
#pragma once

#include "ops/linear/linear_tile_cuda.cuh"
#include "ops/moe/moe_cuda.cuh"
#include "ops/moe/moe_few.h"

namespace weir {

// Rows of x in fragment order, eight a column.
template <int kColumns>
class PairRows {
 public:
  // Column c has the rows at row[c] of this lane (lane / 4 of its eight).
  __device__ PairRows(const uint16_t* x, int64_t width, const int32_t (&row)[kColumns]) {
    for (int c = 0; c < kColumns; ++c) {
      at_[c] = reinterpret_cast<const uint4*>(x + row[c] * width) + lane_index() % 4;
      for (int pair = 0; pair < 2; ++pair) next_[c][pair] = at_[c][4 * pair];
    }
  }
  // Goes on to the next tile, and asks for the one after it, where there is one.
  __device__ void advance(bool more) {
    for (int c = 0; c < kColumns; ++c) {
      at_[c] += more ? 8 : 0;
      for (int pair = 0; pair < 2; ++pair) {
        now_[c][pair] = next_[c][pair];
        next_[c][pair] = at_[c][4 * pair];
      }
    }
  }
  __device__ void load(int c, int pair, uint32_t (&b)[4]) const {
    const uint4& v = now_[c][pair];
    b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
  }

 private:
  const uint4* at_[kColumns];
  uint4 now_[kColumns][2], next_[kColumns][2];
};

// The items of a warp, one strip of one tile of pairs each: those of the block are consecutive.
struct StripItems {
  const PairTile* tiles;
  const std::byte* weights;
  int64_t strip_bytes;
  int32_t strips;
  int32_t segments, segment_tiles;
  int32_t first, end;  // of this warp, kWarps apart
  int32_t warps;
  int32_t tile_bytes;

  __device__ int32_t item(int i) const { return first + i * warps; }
  // Run r: a segment of an item.
  __device__ TileRun operator()(int r) const {
    const int32_t at = item(r / segments);
    if (at >= end) return {};
    const int64_t strip = int64_t{tiles[at / strips].expert} * strips + at % strips;
    return {weights + strip * strip_bytes + int64_t{r % segments} * segment_tiles * tile_bytes, segment_tiles};
  }
};

__device__ inline StripItems strip_items(const ExpertTiles& experts, const PairPlan& plan, int warps) {
  const int64_t items = int64_t{*plan.tile_count} * experts.strips;
  const int64_t block = blockIdx.x, blocks = gridDim.x;
  const int32_t bytes = static_cast<int32_t>(tile_bytes(experts.format));
  return {plan.tiles,
          experts.tiles,
          int64_t{experts.k_tiles()} * bytes,
          experts.strips,
          experts.segments,
          experts.segment_tiles,
          static_cast<int32_t>(items * block / blocks) + static_cast<int32_t>(threadIdx.x) / 32,
          static_cast<int32_t>(items * (block + 1) / blocks),
          warps,
          bytes};
}

template <class Operand, int kColumns, class Ring>
__device__ inline void multiply_item(Ring& ring, const ExpertProduct& args, const PairTile& tile, int strip) {
  int32_t row[kColumns];
  for (int c = 0; c < kColumns; ++c) {
    const int i = c * 8 + lane_index() / 4;
    const int32_t pair = tile.first_pair + (i < tile.rows ? i : tile.rows - 1);
    row[c] = args.row_of == nullptr ? pair : args.row_of[pair];
  }
  PairRows<kColumns> x(args.x, args.experts.width(), row);
  Sums<kColumns> total;
  total.clear();
  int left = args.experts.k_tiles();
  for (int segment = 0; segment < args.experts.segments; ++segment) {
    Sums<kColumns> sums;
    sums.clear();
    for (int count = args.experts.segment_tiles; count > 0; count -= kStageTiles<Operand>) {
      const std::byte* tiles = ring.acquire();
#pragma unroll
      for (int t = 0; t < kStageTiles<Operand>; ++t) {
        if (t >= count) break;
        x.advance(--left > 0);
        multiply_tile<Operand>(tiles + t * Operand::kBytes, x, sums);
      }
      ring.release();
    }
    total.add(sums);
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = c * 8 + lane_index() % 4 * 2 + i;
      if (column >= tile.rows) continue;
      args.out.store(tile, strip, column, total.value[c][i], total.value[c][2 + i]);
    }
  }
  if (strip == args.experts.strips - 1) args.out.pad(tile);
}

// Sixteen warps where their rings leave room for the L1 cache and a tile of pairs is one column; more columns need more
// registers.
template <class Operand, int kMostColumns>
inline constexpr int kFewWarps = kRingBytes<Operand> > 12288 ? 8
                                 : kMostColumns == 1         ? 16
                                                             : 12;

template <class Operand, int kMostColumns>
__global__ void __launch_bounds__(kFewWarps<Operand, kMostColumns> * 32, 1)
    multiply_few(const __grid_constant__ ExpertProduct args) {
  constexpr int kWarps = kFewWarps<Operand, kMostColumns>;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const StripItems items = strip_items(args.experts, args.plan, kWarps);
  TileRing<Operand, StripItems> ring(shared + threadIdx.x / 32 * kRingBytes<Operand>, items);
  for (int i = 0; items.item(i) < items.end; ++i) {
    const PairTile tile = items.tiles[items.item(i) / items.strips];
    const int strip = items.item(i) % items.strips;
    if (kMostColumns == 1 || tile.rows <= 8) {
      multiply_item<Operand, 1>(ring, args, tile, strip);
    } else if constexpr (kMostColumns > 1) {
      if (tile.rows <= 16) {
        multiply_item<Operand, 2>(ring, args, tile, strip);
      } else {
        multiply_item<Operand, 4>(ring, args, tile, strip);
      }
    }
  }
}

template <TileFormat kFormat>
FewKernel few_kernel_of(bool one_column) {
  using Operand = typename OperandOf<kFormat>::Type;
  if (one_column) return {multiply_few<Operand, 1>, kFewWarps<Operand, 1>, kRingBytes<Operand>};
  return {multiply_few<Operand, 4>, kFewWarps<Operand, 4>, kRingBytes<Operand>};
}

}  // namespace weir
