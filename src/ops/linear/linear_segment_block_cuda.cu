#include "ops/linear/linear_segment_cuda.cuh"

namespace weir {

SegmentKernel segment_kernel_block(TileFormat format, int32_t rows, int warps) {
  switch (format) {
    case TileFormat::kQ4_0:
      return segment_instance<TileFormat::kQ4_0>(rows, warps);
    case TileFormat::kQ8_0:
      return segment_instance<TileFormat::kQ8_0>(rows, warps);
    default:
      return {};
  }
}

}  // namespace weir
