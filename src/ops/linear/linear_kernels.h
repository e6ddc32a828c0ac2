// The instances of the kernels of linear_multiply.h, which several files compile.
#pragma once

#include <cstdint>

#include "device/cuda/tensor_map.h"
#include "ops/linear/linear_multiply.h"

namespace weir {

// Of three tables of instances the one that has a format: plain BF16, F16, E4M3, MXFP4; blocks GGUF's of 32; super
// those of 256.
template <class Table>
Table* table_of(TileFormat format, Table* plain, Table* blocks, Table* super) {
  if (format <= TileFormat::kMxfp4) return plain;
  return format <= TileFormat::kIq4Nl ? blocks : super;
}

struct FewRowsKernel {
  void (*kernel)(MultiplyArgs) = nullptr;
  int64_t stage_bytes = 0;  // of a warp's ring
  int32_t stage_tiles = 0;
};

FewRowsKernel few_rows_kernel_plain(TileFormat format);
FewRowsKernel few_rows_kernel_block(TileFormat format);
FewRowsKernel few_rows_kernel_super(TileFormat format);

inline FewRowsKernel few_rows_kernel(TileFormat format) {
  return table_of(format, few_rows_kernel_plain, few_rows_kernel_block, few_rows_kernel_super)(format);
}

inline constexpr int kSegmentRows = 16;  // at most
// Warps of a block, at most: instances of fewer have more registers.
inline constexpr int kFewSegmentWarps = 8, kSomeSegmentWarps = 12, kSegmentWarps = 14;

// Of E4M3, MXFP4, Q4_0, Q8_0, Q4_K, Q5_K and Q6_K.
struct SegmentKernel {
  void (*kernel)(MultiplyArgs) = nullptr;
  int64_t stage_bytes = 0;  // of a warp's ring, with its barrier
  int32_t stage_tiles = 0;
};

// The instance for so many rows, of 8 or 16, and warps.
SegmentKernel segment_kernel_plain(TileFormat format, int32_t rows, int warps);
SegmentKernel segment_kernel_block(TileFormat format, int32_t rows, int warps);
SegmentKernel segment_kernel_super(TileFormat format, int32_t rows, int warps);

inline SegmentKernel segment_kernel(TileFormat format, int32_t rows, int warps) {
  return table_of(format, segment_kernel_plain, segment_kernel_block, segment_kernel_super)(format, rows, warps);
}

// x of each part, in boxes of the rows of a block.
struct WideX {
  cuda::TensorMap of_part[kMostLinearParts];
};

struct WideKernel {
  void (*kernel)(MultiplyArgs, WideX) = nullptr;
  int64_t shared_bytes = 0;
  int32_t rows = 0, strips = 0;  // of a block
  int32_t blocks = 0;            // of a multiprocessor
  int32_t threads = 0;
};

// The instance for so many rows: of 16, 32, 64 or 128.
WideKernel wide_kernel_plain(TileFormat format, int32_t rows);
WideKernel wide_kernel_block(TileFormat format, int32_t rows);
WideKernel wide_kernel_super(TileFormat format, int32_t rows);

inline WideKernel wide_kernel(TileFormat format, int32_t rows) {
  return table_of(format, wide_kernel_plain, wide_kernel_block, wide_kernel_super)(format, rows);
}

// Of packed weights, up to 64 rows.
struct TeamKernel {
  void (*kernel)(MultiplyArgs, WideX) = nullptr;
  int32_t rows = 0;           // at most
  int64_t barrier_bytes = 0;  // of shared memory; stages of x and of each strip's weights, and sums come on top
  int64_t x_bytes = 0;        // of a stage of x
  int32_t x_tiles = 0;
  int64_t stage_bytes = 0;  // of weights
  int32_t stage_tiles = 0;
};

// The instance for so many rows: of 8 or 16, without minima also of 32 or 64.
TeamKernel team_kernel_plain(TileFormat format, int32_t rows);
TeamKernel team_kernel_block(TileFormat format, int32_t rows);
TeamKernel team_kernel_super(TileFormat format, int32_t rows);

inline TeamKernel team_kernel(TileFormat format, int32_t rows) {
  return table_of(format, team_kernel_plain, team_kernel_block, team_kernel_super)(format, rows);
}

// Of packed weights, but for blocks of 32 with minima, up to 64 rows.
struct ResidentKernel {
  void (*kernel)(MultiplyArgs, WideX) = nullptr;
  int32_t rows = 0;         // at most
  int32_t blocks = 0;       // of a multiprocessor
  int64_t stage_bytes = 0;  // of a warp's ring
  int32_t stage_tiles = 0;
  int32_t x_groups = 0;  // of a tile of x, whose sums are taken
};

inline constexpr int kResidentGroups = 4;  // of four warps, of a block, at most

// The instance for so many rows, of 32 or 64, and groups.
ResidentKernel resident_kernel_plain(TileFormat format, int32_t rows, int groups);
ResidentKernel resident_kernel_block(TileFormat format, int32_t rows, int groups);
ResidentKernel resident_kernel_super(TileFormat format, int32_t rows, int groups);

inline ResidentKernel resident_kernel(TileFormat format, int32_t rows, int groups) {
  return table_of(format, resident_kernel_plain, resident_kernel_block, resident_kernel_super)(format, rows, groups);
}

}  // namespace weir
