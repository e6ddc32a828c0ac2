#include "ops/linear/linear_team_cuda.cuh"

namespace weir {

TeamKernel team_kernel_super(TileFormat format, int32_t rows) {
  switch (format) {
    case TileFormat::kQ2_K:
      return team_instance<TileFormat::kQ2_K>(rows);
    case TileFormat::kQ3_K:
      return team_instance<TileFormat::kQ3_K>(rows);
    case TileFormat::kQ4_K:
      return team_instance<TileFormat::kQ4_K>(rows);
    case TileFormat::kQ5_K:
      return team_instance<TileFormat::kQ5_K>(rows);
    case TileFormat::kQ6_K:
      return team_instance<TileFormat::kQ6_K>(rows);
    case TileFormat::kIq4Xs:
      return team_instance<TileFormat::kIq4Xs>(rows);
    default:
      return {};
  }
}

}  // namespace weir
