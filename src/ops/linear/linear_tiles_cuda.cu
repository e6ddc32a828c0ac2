// Tiles from the bytes of a file (linear_tiles.h).
#include <algorithm>

#include "ops/linear/linear_operand_cuda.cuh"
#include "ops/linear/linear_tiles.h"

namespace weir {
namespace {

template <TileFormat kFormat>
__global__ void pack_words(WeightView weight, int64_t k_tiles, int64_t tiles, uint32_t* to) {
  using Operand = typename OperandOf<kFormat>::Type;
  static_assert(Operand::kBytes == tile_bytes(kFormat));
  constexpr int64_t kWords = Operand::kBytes / 4;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t tile = i / kWords;
  if (tile >= tiles) return;
  to[i] = Operand::word(weight, tile / k_tiles * kTileOuts, tile % k_tiles * kTileIns, static_cast<int>(i % kWords));
}

// Whether a scale is beyond what tiles of MXFP4 hold.
__global__ void look_for_large_scales(WeightView weight, uint32_t* found) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t groups = weight.in / 32;
  if (i < weight.out * groups && mxfp4_scale(weight, i / groups, i % groups * 32) > kMxfp4MostScale) *found = 1;
}

constexpr int kThreads = 256;

int64_t blocks_of(int64_t threads) { return (threads + kThreads - 1) / kThreads; }

using PackKernel = void (*)(WeightView, int64_t, int64_t, uint32_t*);

PackKernel pack_kernel(TileFormat format) {
  switch (format) {
    case TileFormat::kBf16:
      return pack_words<TileFormat::kBf16>;
    case TileFormat::kF16:
      return pack_words<TileFormat::kF16>;
    case TileFormat::kE4m3:
      return pack_words<TileFormat::kE4m3>;
    case TileFormat::kMxfp4:
      return pack_words<TileFormat::kMxfp4>;
    case TileFormat::kQ4_0:
      return pack_words<TileFormat::kQ4_0>;
    case TileFormat::kQ4_1:
      return pack_words<TileFormat::kQ4_1>;
    case TileFormat::kQ8_0:
      return pack_words<TileFormat::kQ8_0>;
    case TileFormat::kQ5_1:
      return pack_words<TileFormat::kQ5_1>;
    case TileFormat::kIq4Nl:
      return pack_words<TileFormat::kIq4Nl>;
    case TileFormat::kQ2_K:
      return pack_words<TileFormat::kQ2_K>;
    case TileFormat::kQ3_K:
      return pack_words<TileFormat::kQ3_K>;
    case TileFormat::kQ4_K:
      return pack_words<TileFormat::kQ4_K>;
    case TileFormat::kQ5_K:
      return pack_words<TileFormat::kQ5_K>;
    case TileFormat::kQ6_K:
      return pack_words<TileFormat::kQ6_K>;
    case TileFormat::kIq4Xs:
      return pack_words<TileFormat::kIq4Xs>;
  }
  return nullptr;
}

TileFormat tile_format(const WeightView& weight) {
  switch (weight.format) {
    case WeightFormat::kF16:
      return TileFormat::kF16;
    case WeightFormat::kE4m3:
      return weight.scale_cols % kTileIns == 0 || weight.scale_cols >= weight.in ? TileFormat::kE4m3
                                                                                 : TileFormat::kBf16;
    case WeightFormat::kMxfp4:
    case WeightFormat::kMxfp4Block:
      return TileFormat::kMxfp4;
    case WeightFormat::kQ4_0:
      return TileFormat::kQ4_0;
    case WeightFormat::kQ4_1:
      return TileFormat::kQ4_1;
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ8_0:
      return TileFormat::kQ8_0;
    case WeightFormat::kQ5_1:
      return TileFormat::kQ5_1;
    case WeightFormat::kIq4Nl:
      return TileFormat::kIq4Nl;
    case WeightFormat::kQ2_K:
      return TileFormat::kQ2_K;
    case WeightFormat::kQ3_K:
      return TileFormat::kQ3_K;
    case WeightFormat::kQ4_K:
      return TileFormat::kQ4_K;
    case WeightFormat::kQ5_K:
      return TileFormat::kQ5_K;
    case WeightFormat::kQ6_K:
      return TileFormat::kQ6_K;
    case WeightFormat::kIq4Xs:
      return TileFormat::kIq4Xs;
    default:
      return TileFormat::kBf16;
  }
}

// Rows of a matrix on the device for a moment, as many at a time as fit.
class Staging {
 public:
  Staging(CudaDevice& device, const WeightView& host) : device_(device), host_(host) {
    row_bytes_ = weight_row_bytes(host.format, host.in);
    if (host.format == WeightFormat::kMxfp4) scale_row_bytes_ = host.in / 32;
    if (host.format == WeightFormat::kE4m3) {
      scale_row_bytes_ = (host.in + host.scale_cols - 1) / host.scale_cols * weight_block(host.scale_format).bytes;
    }
    rows_ = std::min((host.out + kTileOuts - 1) / kTileOuts, std::max<int64_t>(1, kBytes / (row_bytes_ * kTileOuts))) *
            kTileOuts;
    data_ = device.allocate(rows_ * row_bytes_);
    if (scale_row_bytes_ != 0) scales_ = device.allocate((rows_ + 1) * scale_row_bytes_);
  }
  ~Staging() {
    device_.release(data_);
    if (scales_ != nullptr) device_.release(scales_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  int64_t rows() const { return rows_; }  // of a part but the last; a multiple of 16
  WeightView part(int64_t first) {
    WeightView view = host_.rows(first, std::min(rows_, host_.out - first));
    device_.copy_rows(data_, view.data, view.out, row_bytes_, view.row_bytes);
    view.data = data_;
    view.row_bytes = row_bytes_;
    if (scales_ == nullptr) return view;
    const int64_t scale_rows = (view.scale_first + view.out - 1) / view.scale_rows + 1;
    device_.copy_rows(scales_, view.scales, scale_rows, scale_row_bytes_, view.scale_row_bytes);
    view.scales = scales_;
    view.scale_row_bytes = scale_row_bytes_;
    return view;
  }

 private:
  static constexpr int64_t kBytes = 64 << 20;

  CudaDevice& device_;
  WeightView host_;
  int64_t row_bytes_ = 0, scale_row_bytes_ = 0, rows_ = 0;
  std::byte* data_ = nullptr;
  std::byte* scales_ = nullptr;
};

bool has_large_scales(CudaDevice& device, const WeightView& host) {
  Staging staging(device, host);
  std::byte* found = device.allocate(4);
  for (int64_t first = 0; first < host.out; first += staging.rows()) {
    const WeightView part = staging.part(first);
    find_large_scales(device, part, reinterpret_cast<uint32_t*>(found));
  }
  uint32_t answer = 0;
  device.to_host(&answer, found, 4);
  device.release(found);
  return answer != 0;
}

}  // namespace

TiledWeight tiled_shape(const WeightView& weight, int64_t segment_ins) {
  TiledWeight shape;
  shape.format = tile_format(weight);
  shape.out = weight.out;
  shape.in = weight.in;
  const int64_t segments = segment_count(weight.in, segment_ins);
  shape.segments = static_cast<int32_t>(segments);
  shape.segment_tiles = static_cast<int32_t>((weight.in + segments * kTileIns - 1) / (segments * kTileIns));
  return shape;
}

void pack_tiles(CudaDevice& device, const WeightView& weight, const TiledWeight& shape, std::byte* to) {
  const int64_t count = (weight.out + kTileOuts - 1) / kTileOuts * shape.k_tiles();
  cuda::launch(device, {.grid = blocks_of(count * tile_bytes(shape.format) / 4), .block = kThreads},
               pack_kernel(shape.format), weight, shape.k_tiles(), count, reinterpret_cast<uint32_t*>(to));
}

void find_large_scales(CudaDevice& device, const WeightView& weight, uint32_t* found) {
  cuda::launch(device, {.grid = blocks_of(weight.out * weight.in / 32), .block = kThreads}, look_for_large_scales,
               weight, found);
}

TiledWeight upload_tiles(CudaDevice& device, const WeightView& host) {
  TiledWeight tiled = tiled_shape(host, kSegmentIns);
  if (tiled.format == TileFormat::kMxfp4 && has_large_scales(device, host)) tiled.format = TileFormat::kBf16;
  std::byte* tiles = device.allocate(tiled.bytes());
  tiled.tiles = tiles;
  Staging staging(device, host);
  for (int64_t first = 0; first < host.out; first += staging.rows()) {
    const WeightView part = staging.part(first);
    pack_tiles(device, part, tiled, tiles + first / kTileOuts * tiled.strip_bytes());
  }
  return tiled;
}

}  // namespace weir
