#include "ops/linear/linear_resident_cuda.cuh"

namespace weir {

ResidentKernel resident_kernel_plain(TileFormat format, int32_t rows, int groups) {
  switch (format) {
    case TileFormat::kE4m3:
      return resident_instance<TileFormat::kE4m3>(rows, groups);
    case TileFormat::kMxfp4:
      return resident_instance<TileFormat::kMxfp4>(rows, groups);
    default:
      return {};
  }
}

}  // namespace weir
