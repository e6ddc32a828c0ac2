#include "ops/moe/moe_few_cuda.cuh"

namespace weir {

FewKernel few_kernel_super(TileFormat format, bool one_column) {
  switch (format) {
    case TileFormat::kQ2_K:
      return few_kernel_of<TileFormat::kQ2_K>(one_column);
    case TileFormat::kQ3_K:
      return few_kernel_of<TileFormat::kQ3_K>(one_column);
    case TileFormat::kQ4_K:
      return few_kernel_of<TileFormat::kQ4_K>(one_column);
    case TileFormat::kQ5_K:
      return few_kernel_of<TileFormat::kQ5_K>(one_column);
    case TileFormat::kQ6_K:
      return few_kernel_of<TileFormat::kQ6_K>(one_column);
    case TileFormat::kIq4Xs:
      return few_kernel_of<TileFormat::kIq4Xs>(one_column);
    default:
      return {};
  }
}

}  // namespace weir
