#include "ops/linear/linear_few_cuda.cuh"

namespace weir {

FewRowsKernel few_rows_kernel_block(TileFormat format) {
  switch (format) {
    case TileFormat::kQ4_0:
      return few_rows_instance<TileFormat::kQ4_0>();
    case TileFormat::kQ4_1:
      return few_rows_instance<TileFormat::kQ4_1>();
    case TileFormat::kQ8_0:
      return few_rows_instance<TileFormat::kQ8_0>();
    case TileFormat::kQ5_1:
      return few_rows_instance<TileFormat::kQ5_1>();
    case TileFormat::kIq4Nl:
      return few_rows_instance<TileFormat::kIq4Nl>();
    default:
      return {};
  }
}

}  // namespace weir
