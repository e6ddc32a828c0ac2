#include "ops/linear/linear_resident_cuda.cuh"

namespace weir {

ResidentKernel resident_kernel_block(TileFormat format, int32_t rows, int groups) {
  switch (format) {
    case TileFormat::kQ4_0:
      return resident_instance<TileFormat::kQ4_0>(rows, groups);
    case TileFormat::kQ8_0:
      return resident_instance<TileFormat::kQ8_0>(rows, groups);
    case TileFormat::kIq4Nl:
      return resident_instance<TileFormat::kIq4Nl>(rows, groups);
    default:
      return {};
  }
}

}  // namespace weir
