// The instances of the kernels of linear_multiply.h, which several files compile.
#pragma once

#include <cstdint>

#include "ops/linear/linear_multiply.h"

namespace weir {

struct FewRowsKernel {
  void (*kernel)(MultiplyArgs) = nullptr;
  int64_t ring_bytes = 0;   // of a warp
  int32_t most_blocks = 8;  // of a multiprocessor
};

// columns: 1, 2, 4 or 8.
FewRowsKernel few_rows_kernel_plain(TileFormat format, int columns);  // BF16, F16, E4M3, MXFP4
FewRowsKernel few_rows_kernel_block(TileFormat format, int columns);  // GGUF's blocks of 32
FewRowsKernel few_rows_kernel_super(TileFormat format, int columns);  // and of 256

inline FewRowsKernel few_rows_kernel(TileFormat format, int columns) {
  if (format <= TileFormat::kMxfp4) return few_rows_kernel_plain(format, columns);
  return format <= TileFormat::kIq4Nl ? few_rows_kernel_block(format, columns) : few_rows_kernel_super(format, columns);
}

struct ManyRowsKernel {
  void (*kernel)(MultiplyArgs) = nullptr;
  int64_t shared_bytes = 0;
  int32_t rows = 0;  // of a block
};

// Up to this many rows blocks take 128, beyond 256 where registers suffice.
inline constexpr int32_t kFewerManyRows = 512;
// Null where a format has none: those with minima, and with groups of sixteen.
ManyRowsKernel many_rows_kernel(TileFormat format, int32_t rows);

}  // namespace weir
