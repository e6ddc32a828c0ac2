#include "ops/linear/linear_few_cuda.cuh"

namespace weir {

FewRowsKernel few_rows_kernel_plain(TileFormat format) {
  switch (format) {
    case TileFormat::kBf16:
      return few_rows_instance<TileFormat::kBf16>();
    case TileFormat::kF16:
      return few_rows_instance<TileFormat::kF16>();
    case TileFormat::kE4m3:
      return few_rows_instance<TileFormat::kE4m3>();
    case TileFormat::kMxfp4:
      return few_rows_instance<TileFormat::kMxfp4>();
    default:
      return {};
  }
}

}  // namespace weir
