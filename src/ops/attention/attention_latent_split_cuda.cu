// Attention over latents for steps of few rows, whose pieces are too few to keep the GPU busy: two kernels.
//   The first makes the weights of all tiles of 64 positions, wherever they lie, as registers of the second hold them.
//   In the second a block has 64 dimensions of a piece's values: it goes through the piece's tiles one after the other,
//   as the block does that has all dimensions.
#include "ops/attention/attention_latent_slices_cuda.cuh"

namespace weir {
namespace latent {
namespace {

// Rows of a step, at most 32, and how many parts each has: a lane for a row.
class Parts {
 public:
  __device__ explicit Parts(int own) : own_(own), to_(own) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int before = __shfl_up_sync(cuda::kAllLanes, to_, d);
      if (static_cast<int>(threadIdx.x) % 32 >= d) to_ += before;
    }
  }
  __device__ int all() const { return __shfl_sync(cuda::kAllLanes, to_, 31); }
  __device__ int row(int part) const { return __popc(__ballot_sync(cuda::kAllLanes, to_ <= part)); }
  __device__ int before(int row) const { return __shfl_sync(cuda::kAllLanes, to_ - own_, row); }

 private:
  int own_, to_;
};

__device__ __forceinline__ int position_of_lane(const StepView& step, const SelectedRows& selected) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= step.rows) return -1;
  return selected.list != nullptr ? selected.count[lane] - 1
                                  : static_cast<int>(step.positions[static_cast<size_t>(lane)]);
}
__device__ __forceinline__ int tiles_to(int position) { return (position + kKeyTile) / kKeyTile; }

// All that a row sees, for the heads of a tile.
__device__ __forceinline__ AttentionWork work_of(const AttentionGeometry& g, int row, int position, int head_tile) {
  AttentionWork work{};
  AttentionBlock block{.row = row, .rows = 1, .position = position};
  block.piece_log = g.piece_log(position);
  block.pieces = pieces_of(g, position, 1);
  work.entry = row;
  work.slots = 1;
  place_unit(work, g, block, kWhole, head_tile, 0);
  return work;
}

// --- weights --------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void weigh_tiles(const MmaAttention& a, const AttentionWork& unit, uint32_t queries,
                                            Exchange& exchange, Turn& turn, int place) {
  mma::Softmax softmax;
  softmax.start_unit(a, unit, thread_query(unit, 0), thread_query(unit, 1));
  const bool both = !few_queries(unit);
#pragma unroll 1
  for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next(), ++place) {
    float scores[kKeyTile / 8][4];
    ptx::mbarrier_wait(&exchange.full[turn.stage()], turn.parity());
    ptx::fence_async_shared();
    multiply_keys(queries, queries + kTileBytes * (1 + turn.stage()), scores);
    if (threadIdx.x % 32 == 0) {
      for (uint64_t& empty : exchange.empty[turn.stage()]) ptx::mbarrier_arrive(&empty);
    }
    softmax.mask(tile, scores, both);
    TileWeights weights;
    float max[2];
    weights.make(scores, a.scale2, both, max);
    const TilePlace to(a, place);
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) {
      const uint32_t* const f = weights.fragments[k];
      to.fragments[k * kGroup + static_cast<int>(threadIdx.x) % kGroup] = {f[0], f[1], f[2], f[3]};
    }
    if (threadIdx.x % 4 == 0) to.maxima[thread_row(0)] = max[0], to.maxima[thread_row(1)] = max[1];
  }
}

// A block takes consecutive tiles of positions of those of all rows and tiles of heads; a warpgroup copies, one weighs.
__global__ void __launch_bounds__(2 * kGroup, 1)
    weigh_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  Exchange& exchange = *reinterpret_cast<Exchange*>(shared + kExchangeAt);
  ptx::let_next_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(&exchange.full[s], kGroup);
      for (uint64_t& empty : exchange.empty[s]) ptx::mbarrier_init(&empty, kGroup / 32);
    }
    ptx::mbarrier_fence_init();
  }
  if (a.selected.list != nullptr) ptx::wait_for_previous();  // which has made the lists
  const int position = position_of_lane(*step, a.selected), head_tiles = a.geometry.tiles();
  const Parts parts(tiles_to(position) * head_tiles);
  __syncthreads();
  const auto bound = [&](unsigned block) {
    return static_cast<int>(static_cast<int64_t>(parts.all()) * block / gridDim.x);
  };
  const int begin = bound(blockIdx.x), end = bound(blockIdx.x + 1);
  const auto for_units = [&](auto take) {
#pragma unroll 1
    for (int part = begin; part < end;) {
      const int row = parts.row(part), tiles = tiles_to(__shfl_sync(cuda::kAllLanes, position, row));
      const int of_row = part - parts.before(row), head_tile = of_row / tiles, tile = of_row - head_tile * tiles;
      AttentionWork unit = work_of(a.geometry, row, __shfl_sync(cuda::kAllLanes, position, row), head_tile);
      const int stop = tiles - tile < end - part ? tiles : tile + end - part;
      unit.first = tile * kKeyTile;
      unit.last = unit.last < stop * kKeyTile ? unit.last : stop * kKeyTile - 1;
      take(unit, part);
      part += stop - tile;
    }
  };
  Turn turn;
  if (static_cast<int>(threadIdx.x) / kGroup == 0) {
    if (begin == end) ptx::wait_for_previous();
    for_units([&](const AttentionWork& unit, int part) {
      copy_tiles(a, *step, unit, shared + kTileBytes, exchange, turn, part == begin);
    });
  } else {
    ptx::wait_for_previous();
    for_units([&](const AttentionWork& unit, int part) {
      ptx::named_barrier_sync(1, kGroup);  // the queries of the unit before have been used
      load_queries(a, unit, shared, static_cast<int>(threadIdx.x) - kGroup, kGroup);
      ptx::fence_async_shared();
      ptx::named_barrier_sync(1, kGroup);
      weigh_tiles(a, unit, ptx::shared_address(shared), exchange, turn, part);
    });
  }
}

// --- sums -----------------------------------------------------------------------------------------------------------

// False: there is nothing for the block.
__device__ __forceinline__ bool find_slice(const MmaAttention& a, const StepView& step, SliceWork& work) {
  const AttentionGeometry& g = a.geometry;
  const int of_lane = position_of_lane(step, a.selected);
  const Parts pieces((of_lane < 0 ? 0 : pieces_of(g, of_lane, 1)) * g.tiles()), tiles(tiles_to(of_lane) * g.tiles());
  work.part = static_cast<int>(blockIdx.x) / kSlices, work.slice = static_cast<int>(blockIdx.x) % kSlices;
  if (work.part >= pieces.all()) return false;
  const int row = pieces.row(work.part), position = __shfl_sync(cuda::kAllLanes, of_lane, row);
  work.pieces = pieces_of(g, position, 1);
  const int of_row = work.part - pieces.before(row), head_tile = of_row / work.pieces;
  AttentionWork& unit = work.unit;
  unit = work_of(g, row, position, head_tile);
  const int first = (of_row - head_tile * work.pieces) << unit.piece_log, end = first + (1 << unit.piece_log);
  unit.first = first;
  unit.last = unit.last < end ? unit.last : end - 1;
  work.place = tiles.before(row) + head_tile * tiles_to(position) + first / kKeyTile;
  if (of_row == 0 && work.slice == 0 && threadIdx.x == 0) {
    a.merge_rows[row] = {work.part, work.pieces == 1 ? 0 : work.pieces, work.pieces, 0, row, unit.count};
  }
  return true;
}

// A block for each slice of each piece of each row's tiles of heads; two warpgroups copy, one multiplies.
__global__ void __launch_bounds__(kSliceThreads)
    add_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  auto& exchange = *reinterpret_cast<SliceExchange*>(shared + kSliceStages * kSliceStage);
  ptx::let_next_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kSliceStages; ++s) {
      ptx::mbarrier_init(&exchange.full[s], kGroup + 1);
      ptx::mbarrier_init(&exchange.empty[s], kGroup / 32);
    }
    ptx::mbarrier_fence_init();
  }
  ptx::wait_for_previous();
  SliceWork work;
  if (!find_slice(a, *step, work)) return;
  const AttentionWork& unit = work.unit;
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroup;
  SliceCopier copier(a, *step, work, warpgroup);
  copier.look_up(exchange.rows);
  __syncthreads();
  const auto for_tiles = [&](auto take) {
    int stage = 0, parity = 0;
#pragma unroll 1
    for (int tile = unit.first; tile <= unit.last; tile += kKeyTile) {
      take(tile, stage, parity);
      stage = stage + 1 < kSliceStages ? stage + 1 : 0;
      if (stage == 0) parity ^= 1;
    }
  };
  if (warpgroup < kSliceCopiers) {
    for_tiles([&](int tile, int stage, int parity) {
      if ((tile - unit.first) / kKeyTile % kSliceCopiers != warpgroup) return;
      ptx::mbarrier_wait(&exchange.empty[stage], parity ^ 1);
      copier.copy(shared + stage * kSliceStage, exchange.rows, &exchange.full[stage]);
    });
  } else {
    SliceAdder adder(unit);
    const auto await = [&](int stage, int parity) {
      ptx::mbarrier_wait(&exchange.full[stage], parity);
      ptx::fence_async_shared();
      adder.join(shared + stage * kSliceStage);
    };
    await(0, 0);
    for_tiles([&](int tile, int stage, int parity) {
      adder.add(shared + stage * kSliceStage, tile == unit.first);
      const int next = stage + 1 < kSliceStages ? stage + 1 : 0;
      if (tile + kKeyTile <= unit.last) await(next, next > 0 ? parity : parity ^ 1);
      adder.wait();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&exchange.empty[stage]);
    });
    leave(a, work, adder.acc, adder.sums);
  }
}

}  // namespace
}  // namespace latent

void add_split_kernels(MmaKernels& kernels) {
  kernels.weigh = latent::weigh_kernel;
  kernels.add = latent::add_kernel;
  kernels.add_threads = latent::kSliceThreads;
  kernels.add_shared_bytes =
      latent::kSliceStages * latent::kSliceStage + static_cast<int>(sizeof(latent::SliceExchange));
  cuda::allow_shared(kernels.weigh, kernels.shared_bytes);
  cuda::allow_shared(kernels.add, kernels.add_shared_bytes);
}

}  // namespace weir
