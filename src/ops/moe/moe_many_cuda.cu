// Products of experts with many rows: two or three groups of four warps multiply 64 rows of strips each with a tile of
// pairs, four more warps bring both through a ring, rows from where they lie. BF16 tiles are operands where they lie in
// shared memory; others become BF16 in registers, a warp its strip, once for all rows. Blocks take items, some strips
// of one tile of pairs, neighbouring ones at the same time, so that they find each other's rows in the L2 cache.
//
// The order of sums is that of linear_tile_cuda.cuh, instructions of other shapes giving the same bits.
#include <type_traits>

#include "ops/linear/linear_tile_cuda.cuh"
#include "ops/moe/moe_cuda.cuh"

namespace weir {
namespace {

constexpr int kFilling = 128;  // threads
constexpr int kFillingWarps = kFilling / 32;

template <class Operand>
inline constexpr bool kInShared = std::is_same_v<Operand, Bf16Operand>;
// Groups of four warps that multiply, and a group's registers a thread. Decoding keeps three busy; two have room for
// more rows.
template <class Operand>
inline constexpr int kGroups = kInShared<Operand> ? 2 : 3;
template <class Operand>
inline constexpr int kRegisters = kInShared<Operand> ? 232 : 152;
template <class Operand>
inline constexpr int kStrips = 4 * kGroups<Operand>;
template <class Operand>
inline constexpr int kMultiplying = 32 * kStrips<Operand>;  // threads
// Of a tile of pairs: what registers hold sums for, besides weights that become BF16 there, and with groups another
// set.
template <class Operand>
inline constexpr int kManyRows = kInShared<Operand> ? 96 : 80;
// Of the instructions for tiles of fewer. The compiler holds registers for the sums of both.
constexpr int kFewerRows = 48;
// Tiles of each strip in a stage.
template <class Operand>
inline constexpr int kDepth = Operand::kBytes > 1200 ? 1 : 2;

constexpr int kRowBytes = 128;  // of a row in a stage: 64 k, swizzled

template <class Operand>
struct Stages {
  static constexpr int kTileRowsBytes = kManyRows<Operand> * kRowBytes;
  static constexpr int kXBytes = kDepth<Operand> * kTileRowsBytes;
  static constexpr int kBytes = (kXBytes + kStrips<Operand> * kDepth<Operand> * Operand::kBytes + 1023) / 1024 * 1024;
  static constexpr int kTotalsBytes = kMultiplying<Operand> * kManyRows<Operand> / 2 * static_cast<int>(sizeof(float));
  static constexpr int kFit = (227 * 1024 - kTotalsBytes) / (kBytes + 16);
  static constexpr int kCount = kFit < 8 ? kFit : 8;
  static constexpr int kSharedBytes = kCount * (kBytes + 16) + kTotalsBytes;

  std::byte* memory;
  int slot = 0;
  uint32_t phase = 0;

  __device__ uint64_t* full() const { return reinterpret_cast<uint64_t*>(memory + kCount * kBytes) + slot; }
  __device__ uint64_t* empty() const { return full() + kCount; }
  __device__ std::byte* x() const { return memory + slot * kBytes; }
  __device__ std::byte* weights(int strip) const { return x() + kXBytes + strip * kDepth<Operand> * Operand::kBytes; }
  // This thread's sums of segments, element i at i * kMultiplying: registers are for those of the segment at hand, and
  // for what becomes of them.
  __device__ float* totals() const { return reinterpret_cast<float*>(memory + kCount * (kBytes + 16)) + threadIdx.x; }
  __device__ void init() {
    for (slot = 0; slot < kCount; ++slot) {
      cuda::ptx::mbarrier_init(full(), kFillingWarps + kFilling);
      cuda::ptx::mbarrier_init(empty(), kStrips<Operand>);
    }
    slot = 0;
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ void advance() {
    if (++slot == kCount) {
      slot = 0;
      phase ^= 1;
    }
  }
};

struct ManyItem {
  PairTile tile;
  int first_strip, strips;
};

// body(item) for those of the block.
template <class Operand, class Body>
__device__ void each_item(const ExpertProduct& args, Body body) {
  constexpr int kMost = kStrips<Operand>;
  const int groups = (args.experts.strips + kMost - 1) / kMost;
  const int items = *args.plan.tile_count * groups;
  for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
    const int first = i % groups * kMost, left = args.experts.strips - first;
    body(ManyItem{args.plan.tiles[i / groups], first, left < kMost ? left : kMost});
  }
}

// By kFilling threads: sixteen bytes of every sixteenth row each, and each warp tiles of as many strips, one a lane.
template <class Operand>
__device__ void bring_item(const ExpertProduct& args, const ManyItem& item, Stages<Operand>& stages) {
  constexpr int kRowsOfThread = kManyRows<Operand> / 16;
  const int thread = static_cast<int>(threadIdx.x) - kMultiplying<Operand>, lane = lane_index();
  const int64_t width = args.experts.width();
  const int eight = thread % 8, first_row = thread / 8;
  const int32_t* pairs = args.plan.pairs + item.tile.first;
  uint32_t from[kRowsOfThread];  // in sixteens of bytes
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int r = first_row + 16 * i;
    const int64_t row = r < item.tile.rows ? pairs[r] / args.x.pairs_per_row : 0;
    from[i] = static_cast<uint32_t>(row * (width / 8) + eight);
  }
  constexpr int kStripsOfWarp = kStrips<Operand> / kFillingWarps;
  const int first_strip = thread / 32 * kStripsOfWarp, left_strips = item.strips - first_strip;
  const int strips = left_strips < 0 ? 0 : left_strips < kStripsOfWarp ? left_strips : kStripsOfWarp;
  const int64_t strip = int64_t{item.tile.expert} * args.experts.strips + item.first_strip + first_strip + lane;
  const std::byte* tile = args.experts.tiles + strip * args.experts.k_tiles() * Operand::kBytes;
  const uint32_t place = cuda::ptx::swizzle128(static_cast<uint32_t>(first_row * kRowBytes + eight * 16));
  for (int segment = 0; segment < args.experts.segments; ++segment) {
    for (int left = args.experts.segment_tiles; left > 0; left -= kDepth<Operand>) {
      const int tiles = left < kDepth<Operand> ? left : kDepth<Operand>;
      cuda::ptx::mbarrier_wait(stages.empty(), stages.phase ^ 1);
      if (lane == 0) cuda::ptx::mbarrier_arrive_expect(stages.full(), strips * tiles * Operand::kBytes);
      __syncwarp();
      if (lane < strips) {
        cuda::ptx::bulk_load(stages.weights(first_strip + lane), tile, tiles * Operand::kBytes, stages.full());
        tile += tiles * Operand::kBytes;
      }
      __syncwarp();
      const uint32_t to = cuda::ptx::shared_address(stages.x()) + place;
#pragma unroll
      for (int t = 0; t < kDepth<Operand>; ++t) {
        if (t >= tiles) break;
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) {
          if (first_row + 16 * i >= item.tile.rows) break;
          cuda::ptx::copy_async16(to + t * Stages<Operand>::kTileRowsBytes + i * 16 * kRowBytes,
                                  args.x.rounded + int64_t{from[i]} * 8);
        }
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) from[i] += 8;
      }
      cuda::ptx::arrive_after_copies(stages.full());
      stages.advance();
    }
  }
}

__device__ inline uint64_t rows_operand(const std::byte* x) {
  return cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(x), 16, 1024, cuda::ptx::Swizzle::k128);
}

// The sums of a segment, of this thread's outputs and rows as wgmma lays them out: sums[4 j + i] of output
// lane / 4 + 8 (i / 2) of the warp's strip and row 8 j + lane % 4 * 2 + i % 2.
template <class Operand, int kRows>
class Segment {
 public:
  __device__ Segment(Stages<Operand>& stages, float (&sums)[kRows / 2]) : stages_(stages), sums_(sums) {}

  __device__ void multiply(int tiles) {
    if constexpr (Operand::kGroupSteps > 0) {
#pragma unroll
      for (float& sum : sums_) sum = 0;
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    for (; tiles > 0; tiles -= kDepth<Operand>) {
      cuda::ptx::mbarrier_wait(stages_.full(), stages_.phase);
      cuda::ptx::fence_async_shared();  // rows have come by ordinary copies
      if constexpr (kInShared<Operand>) {
        in_shared(stages_.weights(warp / 4 * 4), stages_.x());
      } else {
        in_registers(stages_.weights(warp), stages_.x(), tiles < kDepth<Operand> ? tiles : kDepth<Operand>);
      }
      used_ = stages_.empty();
      stages_.advance();
    }
    finish<0>();
    cuda::ptx::pin<kRows / 2>(sums_);
  }

 private:
  // Gives the stage before back when but the last kPending products are done.
  template <int kPending>
  __device__ void finish() {
    cuda::ptx::wgmma_wait<kPending>();
    if (used_ != nullptr && lane_index() == 0) cuda::ptx::mbarrier_arrive(used_);
    used_ = nullptr;
  }

  __device__ void in_shared(const std::byte* weights, const std::byte* x) {
    const uint64_t b = rows_operand(x);
    const uint64_t a =
        cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(weights), 128, 1024, cuda::ptx::Swizzle::kNone);
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      cuda::ptx::wgmma_bf16_shared<kRows>(sums_, a + step * 16, b + step * 2, begun_ || step > 0);
    }
    begun_ = true;
    cuda::ptx::wgmma_commit();
    finish<1>();
  }

  __device__ void in_registers(const std::byte* weights, const std::byte* x, int tiles) {
    Tile first(weights);
    if constexpr (Operand::kGroupSteps > 0) {
      first.multiply(rows_operand(x), sums_);
      if constexpr (kDepth < Operand >> 1) {
        if (tiles > 1) {
          Tile second(weights + Operand::kBytes);
          second.multiply(rows_operand(x + Stages<Operand>::kTileRowsBytes), sums_);
        }
      }
      finish<0>();
    } else {
      finish<0>();
      first.multiply(rows_operand(x), sums_, begun_);
      begun_ = true;
      if constexpr (kDepth < Operand >> 1) {
        if (tiles > 1) {
          Tile second(weights + Operand::kBytes);
          cuda::ptx::wgmma_wait<0>();
          second.multiply(rows_operand(x + Stages<Operand>::kTileRowsBytes), sums_, true);
          return;
        }
      }
      cuda::ptx::wgmma_wait<0>();  // the next tile takes the same registers
    }
  }

  // A tile of the warp's strip in BF16.
  struct Tile {
    uint32_t a[4][Operand::kParts][4];
    float scale[Operand::kGroupSteps > 0 ? 4 / Operand::kGroupSteps : 1][2];

    __device__ explicit Tile(const std::byte* tile) {
      const Operand w(tile);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        for (int part = 0; part < Operand::kParts; ++part) w.a(step, part, a[step][part]);
      }
      if constexpr (Operand::kGroupSteps > 0) {
#pragma unroll
        for (int group = 0; group < 4 / Operand::kGroupSteps; ++group) {
          for (int half = 0; half < 2; ++half) scale[group][half] = w.scale(group, half);
        }
      }
    }
    __device__ void multiply(uint64_t x, float (&sums)[kRows / 2], bool begun) {
      cuda::ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        for (int part = 0; part < Operand::kParts; ++part) {
          cuda::ptx::wgmma_bf16<kRows>(sums, a[step][part], x + step * 2, begun || step > 0 || part > 0);
        }
      }
      cuda::ptx::wgmma_commit();
    }
    // Groups from zero, then times their scales.
    __device__ void multiply(uint64_t x, float (&sums)[kRows / 2]) {
      constexpr int kGroup = Operand::kGroupSteps;
      float product[kRows / 2];
#pragma unroll
      for (int group = 0; group < 4 / kGroup; ++group) {
        cuda::ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < kGroup; ++s) {
          cuda::ptx::wgmma_bf16<kRows>(product, a[group * kGroup + s][0], x + (group * kGroup + s) * 2, s > 0);
        }
        cuda::ptx::wgmma_commit();
        cuda::ptx::wgmma_wait<0>();
        cuda::ptx::pin<kRows / 2>(product);
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) sums[i] = fmaf(scale[group][i / 2 % 2], product[i], sums[i]);
      }
    }
  };

  Stages<Operand>& stages_;
  float (&sums_)[kRows / 2];
  uint64_t* used_ = nullptr;  // by products that may not be done yet
  bool begun_ = false;
};

template <class Operand, int kRows>
__device__ void multiply_item(const ExpertProduct& args, const ManyItem& item, Stages<Operand>& stages) {
  float* totals = stages.totals();
  for (int segment = 0; segment < args.experts.segments; ++segment) {
    float sums[kRows / 2];
    Segment<Operand, kRows>(stages, sums).multiply(args.experts.segment_tiles);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      float& total = totals[i * kMultiplying<Operand>];
      total = (segment == 0 ? 0.f : total) + sums[i];
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp >= item.strips) return;
  const int32_t* pairs = args.plan.pairs + item.tile.first;
  const int strip = item.first_strip + warp;
  ExpertOut::ColumnPairs next(item.tile, pairs, 0);
#pragma unroll 1
  for (int column = 0; column * 8 < item.tile.rows; ++column) {
    float v[4];
    for (int i = 0; i < 4; ++i) v[i] = totals[(column * 4 + i) * kMultiplying<Operand>];
    const ExpertOut::ColumnPairs of_column = next;
    next = ExpertOut::ColumnPairs(item.tile, pairs, column + 1);
    args.out.store_column(item.tile, of_column, strip, v);
  }
  args.out.pad(item.tile, pairs, strip);
}

template <class Operand>
__global__ void __launch_bounds__(kMultiplying<Operand> + kFilling, 1)
    multiply_pairs_many(const __grid_constant__ ExpertProduct args) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  Stages<Operand> stages{shared};
  if (threadIdx.x == 0) stages.init();
  __syncthreads();
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  if (threadIdx.x >= kMultiplying<Operand>) {
    cuda::ptx::lower_registers<40>();
    each_item<Operand>(args, [&](const ManyItem& item) { bring_item<Operand>(args, item, stages); });
    return;
  }
  cuda::ptx::raise_registers<kRegisters<Operand>>();
  each_item<Operand>(args, [&](const ManyItem& item) {
    if (item.tile.rows <= kFewerRows) {
      multiply_item<Operand, kFewerRows>(args, item, stages);
    } else {
      multiply_item<Operand, kManyRows<Operand>>(args, item, stages);
    }
  });
}

struct ManyKernel {
  void (*kernel)(ExpertProduct) = nullptr;
  int threads = 0;
  int64_t shared_bytes = 0;
  int32_t rows = 0;
};

template <TileFormat kFormat>
ManyKernel instance() {
  using Operand = typename OperandOf<kFormat>::Type;
  return {multiply_pairs_many<Operand>, kMultiplying<Operand> + kFilling, Stages<Operand>::kSharedBytes,
          kManyRows<Operand>};
}

ManyKernel many_kernel(TileFormat format) {
  switch (format) {
    case TileFormat::kBf16:
      return instance<TileFormat::kBf16>();
    case TileFormat::kMxfp4:
      return instance<TileFormat::kMxfp4>();
    case TileFormat::kF16:
      return instance<TileFormat::kF16>();
    case TileFormat::kE4m3:
      return instance<TileFormat::kE4m3>();
    case TileFormat::kQ4_0:
      return instance<TileFormat::kQ4_0>();
    case TileFormat::kQ8_0:
      return instance<TileFormat::kQ8_0>();
    case TileFormat::kIq4Nl:
      return instance<TileFormat::kIq4Nl>();
    case TileFormat::kIq4Xs:
      return instance<TileFormat::kIq4Xs>();
    default:
      return {};
  }
}

}  // namespace

void allow_many(TileFormat format) {
  const ManyKernel many = many_kernel(format);
  if (many.kernel != nullptr) cuda::allow_shared(many.kernel, many.shared_bytes);
}

int32_t many_tile_rows(TileFormat format) { return many_kernel(format).rows; }

void multiply_many_pairs(CudaDevice& device, const ExpertProduct& product) {
  const ManyKernel many = many_kernel(product.experts.format);
  cuda::launch(device,
               {.grid = device.sm_count(), .block = many.threads, .shared_bytes = many.shared_bytes, .overlap = true},
               many.kernel, product);
}

}  // namespace weir
