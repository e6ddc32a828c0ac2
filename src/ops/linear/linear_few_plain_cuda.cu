#include "ops/linear/linear_few_cuda.cuh"

namespace weir {

FewRowsKernel few_rows_kernel_plain(TileFormat format, int columns) {
  switch (format) {
    case TileFormat::kBf16:
      return few_rows_instance<TileFormat::kBf16>(columns);
    case TileFormat::kF16:
      return few_rows_instance<TileFormat::kF16>(columns);
    case TileFormat::kE4m3:
      return few_rows_instance<TileFormat::kE4m3>(columns);
    case TileFormat::kMxfp4:
      return few_rows_instance<TileFormat::kMxfp4>(columns);
    default:
      return {};
  }
}

}  // namespace weir
