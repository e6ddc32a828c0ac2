#include "ops/linear/linear_wide_cuda.cuh"

namespace weir {

WideKernel wide_kernel_plain(TileFormat format, int32_t rows) {
  switch (format) {
    case TileFormat::kBf16:
      return wide_instance<TileFormat::kBf16>(rows);
    case TileFormat::kF16:
      return wide_instance<TileFormat::kF16>(rows);
    case TileFormat::kE4m3:
      return wide_instance<TileFormat::kE4m3>(rows);
    case TileFormat::kMxfp4:
      return wide_instance<TileFormat::kMxfp4>(rows);
    default:
      return {};
  }
}

}  // namespace weir
