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

}  // namespace weir
