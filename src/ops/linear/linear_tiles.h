// Weights as the GPU's tensor-core kernels read them: tiles of 16 outputs x 64 inputs, made once when an op is bound.
//
// A strip is 16 outputs; its tiles lie one after the other, k ascending, and strip s begins at s * k_tiles *
// tile_bytes. So whatever part of a row a warp multiplies is one run of bytes for the copy engine. Outputs are padded
// to a multiple of 16 and inputs to k_tiles * 64, with zeros.
//
// Rows are summed in segments (docs/numerics.md): ceil(in / 1024) equal parts of segment_tiles tiles, with experts
// ceil(in / 2048), each summed from zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda_device.h"
#include "formats/weight.h"

namespace weir {

inline constexpr int64_t kTileOuts = 16;
inline constexpr int64_t kTileIns = 64;
inline constexpr int64_t kSegmentIns = 1024;        // of linear: the fewer, the more warps share a row
inline constexpr int64_t kExpertSegmentIns = 2048;  // of experts

// What a tile holds. The file's formats map to fewer: those that differ in how codes are packed give the same tile.
enum class TileFormat : uint8_t {
  kBf16,   // and F32, rounded to BF16; E4M3 with scales of blocks that are not whole tiles wide, likewise
  kF16,    // multiplied as BF16 high and low parts
  kE4m3,   // a scale per output and tile
  kMxfp4,  // both layouts
  kQ4_0,
  kQ4_1,
  kQ8_0,  // and Q5_0
  kQ5_1,
  kIq4Nl,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Xs,
};

constexpr int64_t tile_bytes(TileFormat format) {
  switch (format) {
    case TileFormat::kBf16:
    case TileFormat::kF16:
      return 2048;
    case TileFormat::kE4m3:
      return 1024 + 64;
    case TileFormat::kMxfp4:
      return 512 + 32;
    case TileFormat::kQ4_0:
    case TileFormat::kIq4Nl:
    case TileFormat::kIq4Xs:
      return 512 + 64;
    case TileFormat::kQ4_1:
    case TileFormat::kQ3_K:
    case TileFormat::kQ4_K:
      return 512 + 128;
    case TileFormat::kQ2_K:
      return 512 + 192;
    case TileFormat::kQ8_0:
      return 1024 + 64;
    case TileFormat::kQ5_1:
    case TileFormat::kQ5_K:
    case TileFormat::kQ6_K:
      return 1024 + 128;
  }
  return 0;
}

constexpr int64_t segment_count(int64_t in, int64_t most) { return (in + most - 1) / most; }

struct TiledWeight {
  TileFormat format = TileFormat::kBf16;
  const std::byte* tiles = nullptr;  // on the device, start at a multiple of 256
  int64_t out = 0;
  int64_t in = 0;
  int32_t segments = 0;
  int32_t segment_tiles = 0;

  int64_t strips() const { return (out + kTileOuts - 1) / kTileOuts; }
  int64_t k_tiles() const { return static_cast<int64_t>(segments) * segment_tiles; }
  int64_t strip_bytes() const { return k_tiles() * tile_bytes(format); }
  int64_t bytes() const { return strips() * strip_bytes(); }
  // Outputs [begin, begin + count) as a matrix of its own; begin is a multiple of 16.
  TiledWeight outputs(int64_t begin, int64_t count) const {
    TiledWeight part = *this;
    part.tiles += begin / kTileOuts * strip_bytes();
    part.out = count;
    return part;
  }
};

// Shape and format of the tiles of a matrix, without memory; segments have at most so many inputs.
TiledWeight tiled_shape(const WeightView& weight, int64_t segment_ins);

// Copies a matrix of the host to the device as tiles for linear, which live as long as the device. Any format but
// kNvfp4.
TiledWeight upload_tiles(CudaDevice& device, const WeightView& host);

// For ops with a layout of their own: the tiles of a matrix that lies on the device (16 outputs at a time, the last
// padded), in the shape's format, to memory of the caller. Queued.
void pack_tiles(CudaDevice& device, const WeightView& weight, const TiledWeight& shape, std::byte* to);
// Sets *found (on the device) if the matrix, which lies there too, has a scale that tiles of MXFP4 don't hold. Queued.
void find_large_scales(CudaDevice& device, const WeightView& weight, uint32_t* found);

}  // namespace weir
