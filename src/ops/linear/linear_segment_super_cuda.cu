#include "ops/linear/linear_segment_cuda.cuh"

namespace weir {

SegmentKernel segment_kernel_super(TileFormat format, int32_t rows, int warps) {
  switch (format) {
    case TileFormat::kQ4_K:
      return segment_instance<TileFormat::kQ4_K>(rows, warps);
    case TileFormat::kQ6_K:
      return segment_instance<TileFormat::kQ6_K>(rows, warps);
    case TileFormat::kQ5_K:
      return segment_instance<TileFormat::kQ5_K>(rows, warps);
    default:
      return {};
  }
}

}  // namespace weir
