#include "ops/linear/linear_resident_cuda.cuh"

namespace weir {

ResidentKernel resident_kernel_super(TileFormat format, int32_t rows, int groups) {
  switch (format) {
    case TileFormat::kQ2_K:
      return resident_instance<TileFormat::kQ2_K>(rows, groups);
    case TileFormat::kQ4_K:
      return resident_instance<TileFormat::kQ4_K>(rows, groups);
    case TileFormat::kQ5_K:
      return resident_instance<TileFormat::kQ5_K>(rows, groups);
    case TileFormat::kQ3_K:
      return resident_instance<TileFormat::kQ3_K>(rows, groups);
    case TileFormat::kQ6_K:
      return resident_instance<TileFormat::kQ6_K>(rows, groups);
    case TileFormat::kIq4Xs:
      return resident_instance<TileFormat::kIq4Xs>(rows, groups);
    default:
      return {};
  }
}

}  // namespace weir
