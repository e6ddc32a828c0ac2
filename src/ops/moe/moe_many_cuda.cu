// Products of experts with many rows, as in linear_many_cuda.cuh: two groups of four warps multiply 64 rows of strips
// each with a tile of pairs, one more warp brings both through a ring. Blocks take items, eight strips of one tile of
// pairs, neighbouring ones at the same time, so that they find each other's rows in the L2 cache.
#include "ops/linear/linear_many_cuda.cuh"
#include "ops/moe/moe_cuda.cuh"

namespace weir {
namespace {

// Of a tile of pairs: what registers hold two sets of sums for, besides weights that become BF16 there, and with groups
// three.
template <class Operand>
inline constexpr int kManyRows = std::is_same_v<Operand, Bf16Operand> ? 96 : 64;
template <class Operand>
using Stages = ManyStages<Operand, kManyRows<Operand>>;

struct ManyItem {
  PairTile tile;
  int first_strip, strips;

  __device__ ManyItem(const ExpertProduct& args, int item) {
    const int groups = (args.experts.strips + kManyStrips - 1) / kManyStrips;
    tile = args.plan.tiles[item / groups];
    first_strip = item % groups * kManyStrips;
    const int left = args.experts.strips - first_strip;
    strips = left < kManyStrips ? left : kManyStrips;
  }
  // body(item) for those of the block.
  template <class Body>
  __device__ static void each(const ExpertProduct& args, Body body) {
    const int groups = (args.experts.strips + kManyStrips - 1) / kManyStrips;
    const int items = *args.plan.tile_count * groups;
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) body(ManyItem(args, i));
  }
};

// By a warp: lanes bring a strip's tile each, lane 0 the pairs'.
template <class Operand>
__device__ void bring_item(const ExpertProduct& args, const ManyItem& item, Stages<Operand>& stages) {
  const int k_tiles = args.experts.k_tiles(), lane = lane_index();
  const int x_bytes = item.tile.columns() * kColumnTileBytes;
  const auto* x =
      reinterpret_cast<const std::byte*>(args.x.columns + column_order(item.tile, 0, 0, args.experts.width()));
  const int64_t strip = int64_t{item.tile.expert} * args.experts.strips + item.first_strip + lane;
  const std::byte* tile = args.experts.tiles + strip * k_tiles * Operand::kBytes;
  for (int t = 0; t < k_tiles; ++t) {
    cuda::ptx::mbarrier_wait(stages.empty(), stages.phase ^ 1);
    if (lane == 0) {
      cuda::ptx::mbarrier_arrive_expect(stages.full(), item.strips * Operand::kBytes + x_bytes);
      cuda::ptx::bulk_load(stages.x(), x, x_bytes, stages.full());
    }
    __syncwarp();
    if (lane < item.strips) {
      cuda::ptx::bulk_load(stages.weights() + lane * Operand::kBytes, tile, Operand::kBytes, stages.full());
    }
    x += x_bytes;
    tile += Operand::kBytes;
    stages.advance();
  }
}

template <class Operand, int kRows>
__device__ void multiply_item(const ExpertProduct& args, const ManyItem& item, Stages<Operand>& stages) {
  float total[kRows / 2];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) total[i] = 0;
  for (int segment = 0; segment < args.experts.segments; ++segment) {
    float sums[kRows / 2];
    if constexpr (Operand::kGroupSteps > 0) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) sums[i] = 0;
    }
    uint64_t* used = nullptr;  // by products that may not be done yet
    for (int t = 0; t < args.experts.segment_tiles; ++t) {
      cuda::ptx::mbarrier_wait(stages.full(), stages.phase);
      if constexpr (Operand::kGroupSteps > 0) {
        multiply_many_groups<Operand, kRows>(stages.weights(), stages.x(), sums);
      } else {
        multiply_many<Operand, kRows>(stages.weights(), stages.x(), t == 0, sums);
        cuda::ptx::wgmma_wait<1>();
      }
      if (used != nullptr && lane_index() == 0) cuda::ptx::mbarrier_arrive(used);
      used = stages.empty();
      stages.advance();
    }
    cuda::ptx::wgmma_wait<0>();
    cuda::ptx::pin<kRows / 2>(sums);
    if (lane_index() == 0) cuda::ptx::mbarrier_arrive(used);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) total[i] += sums[i];
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp >= item.strips) return;
  const int strip = item.first_strip + warp;
  const int32_t* pairs = args.plan.pairs + item.tile.first;
#pragma unroll
  for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = column * 8 + lane_index() % 4 * 2 + i;
      if (row >= item.tile.rows) continue;
      args.out.store(item.tile, strip, row, pairs[row], total[4 * column + i], total[4 * column + 2 + i]);
    }
  }
  if (strip == args.experts.strips - 1) args.out.pad(item.tile, pairs);
}

template <class Operand>
__global__ void __launch_bounds__(kManyThreads, 1) multiply_pairs_many(const __grid_constant__ ExpertProduct args) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  Stages<Operand> stages{shared};
  if (threadIdx.x == 0) stages.init();
  __syncthreads();
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  if (threadIdx.x / 32 >= kManyStrips) {
    cuda::ptx::lower_registers<40>();
    if (threadIdx.x / 32 > kManyStrips) return;
    ManyItem::each(args, [&](const ManyItem& item) { bring_item<Operand>(args, item, stages); });
    return;
  }
  cuda::ptx::raise_registers<232>();
  ManyItem::each(args, [&](const ManyItem& item) {
    if (item.tile.rows <= 32) {
      multiply_item<Operand, 32>(args, item, stages);
    } else if (kManyRows<Operand> == 64 || item.tile.rows <= 64) {
      multiply_item<Operand, 64>(args, item, stages);
    } else if constexpr (kManyRows<Operand> > 64) {
      multiply_item<Operand, 96>(args, item, stages);
    }
  });
}

struct ManyKernel {
  void (*kernel)(ExpertProduct) = nullptr;
  int64_t shared_bytes = 0;
  int32_t rows = 0;
};

template <TileFormat kFormat>
ManyKernel instance() {
  using Operand = typename OperandOf<kFormat>::Type;
  return {multiply_pairs_many<Operand>, Stages<Operand>::kSharedBytes, kManyRows<Operand>};
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
               {.grid = device.sm_count(), .block = kManyThreads, .shared_bytes = many.shared_bytes, .overlap = true},
               many.kernel, product);
}

}  // namespace weir
