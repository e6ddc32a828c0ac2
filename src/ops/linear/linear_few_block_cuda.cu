#include "ops/linear/linear_few_cuda.cuh"

namespace weir {

FewRowsKernel few_rows_kernel_block(TileFormat format, int columns) {
  switch (format) {
    case TileFormat::kQ4_0:
      return few_rows_instance<TileFormat::kQ4_0>(columns);
    case TileFormat::kQ4_1:
      return few_rows_instance<TileFormat::kQ4_1>(columns);
    case TileFormat::kQ8_0:
      return few_rows_instance<TileFormat::kQ8_0>(columns);
    case TileFormat::kQ5_1:
      return few_rows_instance<TileFormat::kQ5_1>(columns);
    case TileFormat::kIq4Nl:
      return few_rows_instance<TileFormat::kIq4Nl>(columns);
    default:
      return {};
  }
}

}  // namespace weir
