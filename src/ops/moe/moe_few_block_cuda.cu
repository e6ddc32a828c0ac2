#include "ops/moe/moe_few_cuda.cuh"

namespace weir {

FewKernel few_kernel_block(TileFormat format, bool one_column) {
  switch (format) {
    case TileFormat::kQ4_0:
      return few_kernel_of<TileFormat::kQ4_0>(one_column);
    case TileFormat::kQ4_1:
      return few_kernel_of<TileFormat::kQ4_1>(one_column);
    case TileFormat::kQ8_0:
      return few_kernel_of<TileFormat::kQ8_0>(one_column);
    case TileFormat::kQ5_1:
      return few_kernel_of<TileFormat::kQ5_1>(one_column);
    case TileFormat::kIq4Nl:
      return few_kernel_of<TileFormat::kIq4Nl>(one_column);
    default:
      return {};
  }
}

}  // namespace weir
