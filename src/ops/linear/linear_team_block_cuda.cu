#include "ops/linear/linear_team_cuda.cuh"

namespace weir {

TeamKernel team_kernel_block(TileFormat format, int32_t rows) {
  switch (format) {
    case TileFormat::kQ4_0:
      return team_instance<TileFormat::kQ4_0>(rows);
    case TileFormat::kQ4_1:
      return team_instance<TileFormat::kQ4_1>(rows);
    case TileFormat::kQ8_0:
      return team_instance<TileFormat::kQ8_0>(rows);
    case TileFormat::kQ5_1:
      return team_instance<TileFormat::kQ5_1>(rows);
    case TileFormat::kIq4Nl:
      return team_instance<TileFormat::kIq4Nl>(rows);
    default:
      return {};
  }
}

}  // namespace weir
