#include "ops/moe/moe_few_cuda.cuh"

namespace weir {

FewKernel few_kernel_plain(TileFormat format, bool one_column) {
  switch (format) {
    case TileFormat::kBf16:
      return few_kernel_of<TileFormat::kBf16>(one_column);
    case TileFormat::kF16:
      return few_kernel_of<TileFormat::kF16>(one_column);
    case TileFormat::kE4m3:
      return few_kernel_of<TileFormat::kE4m3>(one_column);
    case TileFormat::kMxfp4:
      return few_kernel_of<TileFormat::kMxfp4>(one_column);
    default:
      return {};
  }
}

}  // namespace weir
