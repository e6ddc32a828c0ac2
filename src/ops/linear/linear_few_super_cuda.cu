#include "ops/linear/linear_few_cuda.cuh"

namespace weir {

FewRowsKernel few_rows_kernel_super(TileFormat format) {
  switch (format) {
    case TileFormat::kQ2_K:
      return few_rows_instance<TileFormat::kQ2_K>();
    case TileFormat::kQ3_K:
      return few_rows_instance<TileFormat::kQ3_K>();
    case TileFormat::kQ4_K:
      return few_rows_instance<TileFormat::kQ4_K>();
    case TileFormat::kQ5_K:
      return few_rows_instance<TileFormat::kQ5_K>();
    case TileFormat::kQ6_K:
      return few_rows_instance<TileFormat::kQ6_K>();
    case TileFormat::kIq4Xs:
      return few_rows_instance<TileFormat::kIq4Xs>();
    default:
      return {};
  }
}

}  // namespace weir
