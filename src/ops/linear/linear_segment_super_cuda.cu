#include "ops/linear/linear_segment_cuda.cuh"

namespace weir {

SegmentKernel segment_kernel_super(TileFormat format, int32_t rows, int warps) {
  if (rows > 8) return {};
  switch (format) {
    case TileFormat::kQ4_K:
      return segment_instance<TileFormat::kQ4_K, 1>(warps);
    case TileFormat::kQ6_K:
      return segment_instance<TileFormat::kQ6_K, 1>(warps);
    default:
      return {};
  }
}

}  // namespace weir
