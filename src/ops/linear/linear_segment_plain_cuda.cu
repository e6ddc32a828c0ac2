#include "ops/linear/linear_segment_cuda.cuh"

namespace weir {

SegmentKernel segment_kernel_plain(TileFormat format, int32_t rows, int warps) {
  switch (format) {
    case TileFormat::kE4m3:
      return segment_instance<TileFormat::kE4m3>(rows, warps);
    case TileFormat::kMxfp4:
      return segment_instance<TileFormat::kMxfp4>(rows, warps);
    default:
      return {};
  }
}

}  // namespace weir
