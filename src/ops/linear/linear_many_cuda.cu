#include "ops/linear/linear_many_cuda.cuh"

namespace weir {
namespace {

template <TileFormat kFormat, int kRows>
ManyRowsKernel instance() {
  return {linear_many_rows<kFormat, kRows>, ManyStages<typename OperandOf<kFormat>::Type, kRows>::kSharedBytes, kRows};
}

}  // namespace

ManyRowsKernel many_rows_kernel(TileFormat format, int32_t rows) {
  // Groups need two sets of sums, for which registers suffice with 128 rows.
  switch (format) {
    case TileFormat::kBf16:
      return rows > kFewerManyRows ? instance<TileFormat::kBf16, 256>() : instance<TileFormat::kBf16, 128>();
    case TileFormat::kMxfp4:
      return rows > kFewerManyRows ? instance<TileFormat::kMxfp4, 256>() : instance<TileFormat::kMxfp4, 128>();
    case TileFormat::kF16:
      return instance<TileFormat::kF16, 128>();
    case TileFormat::kE4m3:
      return instance<TileFormat::kE4m3, 128>();
    case TileFormat::kQ4_0:
      return instance<TileFormat::kQ4_0, 128>();
    case TileFormat::kQ8_0:
      return instance<TileFormat::kQ8_0, 128>();
    case TileFormat::kIq4Nl:
      return instance<TileFormat::kIq4Nl, 128>();
    case TileFormat::kIq4Xs:
      return instance<TileFormat::kIq4Xs, 128>();
    default:
      return {};
  }
}

}  // namespace weir
