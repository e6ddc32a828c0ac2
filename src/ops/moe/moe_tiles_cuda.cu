// Experts of a layer as tiles (linear_tiles.h), side by side in one allocation.
#include <algorithm>

#include "ops/linear/linear_tiles.h"
#include "ops/moe/moe_cuda.cuh"

namespace weir {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kHalf = kTileOuts / 2;

// Rows of gate and up as those of one matrix: eight of gate, eight of up, ... Rows beyond the last are zeros. Words of
// four bytes, or bytes where rows are no multiple of that.
template <class Word>
__global__ void interleave(const Word* gate, const Word* up, int64_t rows, int64_t row_words, int64_t all, Word* to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= all * row_words) return;
  const int64_t row = i / row_words;
  const int64_t from = row / kTileOuts * kHalf + row % kHalf;
  const Word* matrix = row % kTileOuts < kHalf ? gate : up;
  to[i] = from < rows ? matrix[from * row_words + i % row_words] : Word{0};
}

int64_t blocks_of(int64_t threads) { return (threads + kThreads - 1) / kThreads; }

int64_t scale_row_bytes(const WeightView& weight) {
  if (weight.format == WeightFormat::kMxfp4) return weight.in / 32;
  if (weight.format != WeightFormat::kE4m3) return 0;
  return (weight.in + weight.scale_cols - 1) / weight.scale_cols * weight_block(weight.scale_format).bytes;
}

// Memory on the device while a layer is uploaded.
class Scratch {
 public:
  Scratch(CudaDevice& device, int64_t bytes) : device_(device), data_(device.allocate(std::max<int64_t>(bytes, 1))) {}
  ~Scratch() { device_.release(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::byte* data() const { return data_; }

 private:
  CudaDevice& device_;
  std::byte* data_;
};

// One matrix after the other, or gate with up, as the file has it but packed; scales have a row for every output.
class Stage {
 public:
  Stage(CudaDevice& device, const WeightView& shape, bool pair)
      : device_(device),
        outs_(pair ? (shape.out + kHalf - 1) / kHalf * kTileOuts : shape.out),
        row_bytes_(weight_row_bytes(shape.format, shape.in)),
        scale_bytes_(scale_row_bytes(shape)),
        raw_(device, 2 * shape.out * row_bytes_),
        raw_scales_(device, 2 * shape.out * scale_bytes_),
        data_(device, pair ? outs_ * row_bytes_ : 0),
        scales_(device, pair ? outs_ * scale_bytes_ : 0) {}

  WeightView put(const WeightView& matrix) { return view(matrix, copy(raw_, 0, matrix), copy_scales(0, matrix)); }
  WeightView put(const WeightView& gate, const WeightView& up) {
    const std::byte* gates = copy(raw_, 0, gate);
    const std::byte* ups = copy(raw_, gate.out * row_bytes_, up);
    mix(gates, ups, gate.out, row_bytes_, data_.data());
    if (scale_bytes_ != 0) {
      mix(copy_scales(0, gate), copy_scales(gate.out * scale_bytes_, up), gate.out, scale_bytes_, scales_.data());
    }
    return view(gate, data_.data(), scales_.data());
  }

 private:
  WeightView view(const WeightView& host, const std::byte* data, const std::byte* scales) const {
    WeightView view = host;
    view.out = outs_;
    view.data = data;
    view.row_bytes = row_bytes_;
    if (scale_bytes_ == 0) return view;
    view.scales = scales;
    view.scale_row_bytes = scale_bytes_;
    view.scale_rows = 1;
    view.scale_first = 0;
    return view;
  }
  const std::byte* copy(const Scratch& to, int64_t at, const WeightView& host) {
    device_.copy_rows(to.data() + at, host.data, host.out, row_bytes_, host.row_bytes);
    return to.data() + at;
  }
  // Outputs that share a row of scales get copies of it.
  const std::byte* copy_scales(int64_t at, const WeightView& host) {
    std::byte* to = raw_scales_.data() + at;
    if (scale_bytes_ == 0) return to;
    if (host.scale_rows == 1) {
      device_.copy_rows(to, host.scales + host.scale_first * host.scale_row_bytes, host.out, scale_bytes_,
                        host.scale_row_bytes);
      return to;
    }
    for (int64_t o = 0; o < host.out;) {
      const int64_t row = (host.scale_first + o) / host.scale_rows;
      const int64_t end = std::min(host.out, (row + 1) * host.scale_rows - host.scale_first);
      device_.copy_rows(to + o * scale_bytes_, host.scales + row * host.scale_row_bytes, end - o, scale_bytes_, 0);
      o = end;
    }
    return to;
  }
  void mix(const std::byte* gate, const std::byte* up, int64_t rows, int64_t row_bytes, std::byte* to) {
    const auto run = [&]<class Word>(Word) {
      const int64_t words = row_bytes / static_cast<int64_t>(sizeof(Word));
      cuda::launch(device_, {.grid = blocks_of(outs_ * words), .block = kThreads}, interleave<Word>,
                   reinterpret_cast<const Word*>(gate), reinterpret_cast<const Word*>(up), rows, words, outs_,
                   reinterpret_cast<Word*>(to));
    };
    if (row_bytes % 4 == 0 && rows * row_bytes % 4 == 0) {
      run(uint32_t{});
    } else {
      run(uint8_t{});
    }
  }

  CudaDevice& device_;
  int64_t outs_;
  int64_t row_bytes_, scale_bytes_;
  Scratch raw_, raw_scales_, data_, scales_;
};

// Tiles of every expert's matrix. put(stage, expert) gives the matrix on the device.
template <class Put>
ExpertTiles upload_side(CudaDevice& device, const MoeArgs& args, const WeightView& shape, bool pair, Put put) {
  Stage stage(device, shape, pair);
  const auto count = static_cast<int64_t>(args.experts.size());
  TiledWeight tiled = tiled_shape(put(stage, args.experts.front()), kExpertSegmentIns);
  const Scratch found(device, 4);
  const auto pack = [&](std::byte* tiles) {
    for (int64_t e = 0; e < count; ++e) {
      const WeightView matrix = put(stage, args.experts[static_cast<size_t>(e)]);
      pack_tiles(device, matrix, tiled, tiles + e * tiled.bytes());
      if (tiled.format == TileFormat::kMxfp4) {
        find_large_scales(device, matrix, reinterpret_cast<uint32_t*>(found.data()));
      }
    }
  };
  std::byte* tiles = device.allocate(count * tiled.bytes());
  pack(tiles);
  uint32_t large = 0;
  device.to_host(&large, found.data(), 4);
  if (large != 0) {
    device.release(tiles);
    tiled.format = TileFormat::kBf16;
    tiles = device.allocate(count * tiled.bytes());
    pack(tiles);
  }
  return {tiled.format, tiles, static_cast<int32_t>(tiled.strips()), tiled.segments, tiled.segment_tiles};
}

}  // namespace

TiledExperts upload_experts(CudaDevice& device, const MoeArgs& args) {
  const ExpertWeights& shape = args.experts.front();
  const auto pairs = [](Stage& stage, const ExpertWeights& w) { return stage.put(w.gate, w.up); };
  const auto downs = [](Stage& stage, const ExpertWeights& w) { return stage.put(w.down); };
  return {.gate_up = upload_side(device, args, shape.gate, true, pairs),
          .down = upload_side(device, args, shape.down, false, downs)};
}

}  // namespace weir
