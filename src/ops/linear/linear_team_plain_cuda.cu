#include "ops/linear/linear_team_cuda.cuh"

namespace weir {

TeamKernel team_kernel_plain(TileFormat format, int32_t rows) {
  switch (format) {
    case TileFormat::kE4m3:
      return team_instance<TileFormat::kE4m3>(rows);
    case TileFormat::kMxfp4:
      return team_instance<TileFormat::kMxfp4>(rows);
    default:
      return {};
  }
}

}  // namespace weir
