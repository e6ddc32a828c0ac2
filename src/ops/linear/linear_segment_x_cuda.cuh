// Rows of x of a block of linear_segment_cuda.cuh.
#pragma once

#include "ops/linear/linear_multiply.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

// A tile of x in shared memory for columns of eight rows: they lie as SharedX says.
template <int kColumns>
struct SegmentTile {
  uint32_t at[kColumns];

  __device__ void advance() {
    for (uint32_t& a : at) a += 128;
  }
};

// The same in registers.
template <int kColumns>
struct LoadedTile {
  uint32_t fragments[2][kColumns][4];

  __device__ explicit LoadedTile(const SegmentTile<kColumns>& x) {
    for (int pair = 0; pair < 2; ++pair) {
      for (int c = 0; c < kColumns; ++c) {
        cuda::ptx::load_matrix_x4(fragments[pair][c], x.at[c] + static_cast<uint32_t>(pair) * 64);
      }
    }
  }
  __device__ void load(int c, int pair, uint32_t (&b)[4]) const {
    for (int i = 0; i < 4; ++i) b[i] = fragments[pair][c][i];
  }
};

// A segment of the rows as BF16 in shared memory, as many rows as the launch is for; nobody looks at the sums of those
// beyond the step's. They come in pieces of some tiles, whose barriers all threads arrive at.
struct SegmentX {
  static constexpr int kPieceTiles = 4, kMostPieces = 4;
  static constexpr int kPieceEights = kPieceTiles * static_cast<int>(kTileIns / 8);
  static_assert(kPieceEights == 32);

  const MultiplyArgs& args;
  uint64_t* full;  // of each piece
  std::byte* rows;
  int first, eights, row_bytes;  // of a row: k, eights of k

  __device__ SegmentX(const MultiplyArgs& args_, int segment, std::byte* shared)
      : args(args_),
        full(reinterpret_cast<uint64_t*>(shared)),
        rows(shared + kMostPieces * 8),
        first(segment * args.segment_tiles * static_cast<int>(kTileIns)),
        eights(args.segment_tiles * static_cast<int>(kTileIns / 8)),
        row_bytes(eights * 16 + kRowGap) {}

  // Of shared memory.
  WEIR_HD static int64_t bytes(const MultiplyArgs& args, int32_t rows) {
    return kMostPieces * 8 + (int64_t{args.segment_tiles} * 128 + kRowGap) * rows;
  }

  // By all threads; before load there is a barrier.
  __device__ void init() const {
    if (threadIdx.x < kMostPieces) {
      cuda::ptx::mbarrier_init(full + threadIdx.x, static_cast<int>(blockDim.x));
    }
  }

  // Of fewer rows the last stands for those that there are not.
  template <int kColumns>
  __device__ SegmentTile<kColumns> tile() const {
    SegmentTile<kColumns> tile;
    for (int c = 0; c < kColumns; ++c) {
      const int row = 8 * c + lane_index() % 8;
      tile.at[c] = cuda::ptx::shared_address(rows) + static_cast<uint32_t>(lane_index() / 8 * 16) +
                   static_cast<uint32_t>((row < args.x_rows ? row : args.x_rows - 1) * row_bytes);
    }
    return tile;
  }
  __device__ void wait(int piece) const { cuda::ptx::mbarrier_wait(full + piece, 0); }

  // By all threads of the block: a warp takes whole rows, a lane eights of each piece.
  __device__ void load(const LinearPart& part) const {
    const bool whole = args.x_type == RowType::kBf16 && args.in % 8 == 0;
    for (int piece = 0; piece * kPieceEights < eights; ++piece) {
      const int eight = piece * kPieceEights + lane_index(), left = args.in - first - 8 * eight;
      if (eight < eights) {
        for (int row = static_cast<int>(threadIdx.x) / 32; row < args.x_rows;
             row += static_cast<int>(blockDim.x) / 32) {
          std::byte* to = rows + row * row_bytes + eight * 16;
          const int64_t at = row * part.x_stride + first + 8 * eight;
          if (whole) {
            cuda::ptx::copy_async16(cuda::ptx::shared_address(to),
                                    static_cast<const uint16_t*>(part.x) + (left > 0 ? at : 0), left > 0);
          } else {
            *reinterpret_cast<uint4*>(to) = args.x_type == RowType::kBf16
                                                ? load_eight(static_cast<const uint16_t*>(part.x) + at, 0, left)
                                                : round_eight(static_cast<const float*>(part.x) + at, 0, left);
          }
        }
      }
      if (whole) {
        cuda::ptx::arrive_after_copies(full + piece);
      } else {
        cuda::ptx::mbarrier_arrive(full + piece);
      }
    }
  }
};

}  // namespace weir
