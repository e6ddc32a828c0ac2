// The instances of the kernels of linear_multiply.h, which several files compile.
#pragma once

#include <cstdint>

#include "device/cuda/tensor_map.h"
#include "ops/linear/linear_multiply.h"

namespace weir {

struct FewRowsKernel {
  void (*kernel)(MultiplyArgs) = nullptr;
  int64_t stage_bytes = 0;  // of a warp's ring
  int32_t stage_tiles = 0;
};

FewRowsKernel few_rows_kernel_plain(TileFormat format);  // BF16, F16, E4M3, MXFP4
FewRowsKernel few_rows_kernel_block(TileFormat format);  // GGUF's blocks of 32
FewRowsKernel few_rows_kernel_super(TileFormat format);  // and of 256

inline FewRowsKernel few_rows_kernel(TileFormat format) {
  if (format <= TileFormat::kMxfp4) return few_rows_kernel_plain(format);
  return format <= TileFormat::kIq4Nl ? few_rows_kernel_block(format) : few_rows_kernel_super(format);
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
  if (format <= TileFormat::kMxfp4) return wide_kernel_plain(format, rows);
  return format <= TileFormat::kIq4Nl ? wide_kernel_block(format, rows) : wide_kernel_super(format, rows);
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
  if (format <= TileFormat::kMxfp4) return team_kernel_plain(format, rows);
  return format <= TileFormat::kIq4Nl ? team_kernel_block(format, rows) : team_kernel_super(format, rows);
}

}  // namespace weir
