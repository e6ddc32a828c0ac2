// Attention over latents for steps of few rows, whose pieces are too few to keep the GPU busy: two kernels.
//   The first makes the weights of all tiles of 64 positions, wherever they lie, as registers of the second hold them.
//   In the second a block has 64 dimensions of a piece's values: it goes through the piece's tiles one after the other,
//   as the block does that has all dimensions.
#include "ops/attention/attention_latent_weights_cuda.cuh"

namespace weir {
namespace latent {
namespace {

inline constexpr int kSlice = 64;  // dimensions
inline constexpr int kSlices = kValueDim / kSlice;

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

// Where the weights of a tile lie: fragments of each k and thread, then maxima.
struct TilePlace {
  uint4* fragments;
  float* maxima;

  __device__ TilePlace(const MmaAttention& a, int64_t tile) {
    fragments = reinterpret_cast<uint4*>(a.tile_weights + tile * kTileWeightBytes);
    maxima = reinterpret_cast<float*>(fragments + kTilePages * kGroup);
  }
};
static_assert(kTileWeightBytes == kTilePages * kGroup * 16 + kQueries * 4);

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

// A slice of a tile's values, its weights and maxima.
inline constexpr int kValueBytes = kKeyTile * kSlice * 2;
inline constexpr int kSliceStage = (kValueBytes + kTileWeightBytes + 1023) / 1024 * 1024, kSliceStages = 6;

// Behind the stages.
struct SliceExchange {
  uint64_t full[kSliceStages], empty[kSliceStages];
  int32_t rows[kMostSplitEntries];  // pages of the piece; of a list of positions their rows
};

// What a block has to do: a slice of a piece of a row's tile of heads.
struct SliceWork {
  AttentionWork unit;
  int part, pieces, slice;  // of all pieces; of the unit's row
  int64_t place;            // of the weights of the first tile
};

class SliceCopier {
 public:
  __device__ SliceCopier(const MmaAttention& a, const StepView& step, const SliceWork& work)
      : keys_(paged_rows(step, span_of(step, a.selected, work.unit.entry), a.args.key, a.selected.of(work.unit.entry)),
              a.args.dtype, 0, kKeyDim, kKeyDim),
        first_(work.unit.first),
        positions_(work.unit.last + 1 - work.unit.first),
        row_(static_cast<int>(threadIdx.x) / 8),
        chunk_(static_cast<int>(threadIdx.x) % 8),
        element_(work.slice * kSlice + chunk_ * 8),
        weights_(a.tile_weights + work.place * kTileWeightBytes) {}

  // By all threads of the block, before any copy.
  __device__ void look_up(int32_t* rows) const {
    const bool list = keys_.rows.selected != nullptr;
    const int count = list ? positions_ : (positions_ + kPageRows - 1) / kPageRows;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += 2 * kGroup) {
      const int position = list ? keys_.rows.selected[first_ + i] : first_ + i * kPageRows;
      const auto page = static_cast<int32_t>(keys_.rows.pages[position / kPageRows]);
      rows[i] = list ? page * kPageRows + position % kPageRows : page;
    }
  }

  // The next tile; every thread of the warpgroup arrives at `full`, one twice.
  __device__ void copy(std::byte* stage, const int32_t* rows, uint64_t* full) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect(full, kTileWeightBytes);
      ptx::bulk_load(stage + kValueBytes, weights_, kTileWeightBytes, full);
    }
    weights_ += kTileWeightBytes;
#pragma unroll
    for (int p = 0; p < kTilePages; ++p) {
      const int r = p * kPageRows + row_, position = tile_ + r;
      const bool live = position < positions_;
      copy_chunk(stage, mma::chunk_offset(r, chunk_, 128), live ? row(rows, position) : keys_.rows.base, live);
    }
    tile_ += kKeyTile;
    if (keys_.direct) {
      ptx::arrive_after_copies(full);
    } else {
      ptx::mbarrier_arrive(full);
    }
  }

 private:
  __device__ const std::byte* row(const int32_t* rows, int position) const {
    const bool list = keys_.rows.selected != nullptr;
    const int found = rows[list ? position : position / kPageRows];
    const int64_t page = list ? found / kPageRows : found;
    return keys_.rows.base + page * keys_.rows.block_bytes + (list ? found % kPageRows : row_) * keys_.rows.row_bytes;
  }

  __device__ void copy_chunk(std::byte* stage, uint32_t at, const std::byte* row, bool live) const {
    if (keys_.direct) {
      return ptx::copy_async16(ptx::shared_address(stage) + at, row + element_ * 2, live);
    }
    mma::Eight eight{};
#pragma unroll 1
    for (int e = 0; e < 8 && live; ++e) eight.v[e] = stored_element(keys_.dtype, row, element_ + e);
    mma::store_chunk(at, stage, eight.rounded());
  }

  const mma::TileSource keys_;
  const int first_, positions_;
  const int row_, chunk_, element_;  // of a tile's place
  int tile_ = 0;                     // counted from the piece's first position
  const std::byte* weights_;
};

// Sums a piece's tiles, by a warpgroup.
class SliceAdder {
 public:
  __device__ SliceAdder(const AttentionWork& unit) : both_(!few_queries(unit)) {}

  // How the tile in a stage joins those before; meanwhile the products of one before may be under way.
  __device__ __forceinline__ void join(const std::byte* stage) {
    const auto* const maxima = reinterpret_cast<const float*>(stage + kValueBytes) + kTilePages * kGroup * 4;
    join_[0] = Join(sums[0].m, maxima[thread_row(0)]);
    if (both_) join_[1] = Join(sums[1].m, maxima[thread_row(1)]);
  }

  // Begins to add that tile.
  __device__ __forceinline__ void add(const std::byte* stage, bool starts) {
    const auto* const fragments = reinterpret_cast<const uint4*>(stage + kValueBytes);
    TileWeights weights;
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) {
      const uint4 f = fragments[k * kGroup + static_cast<int>(threadIdx.x) % kGroup];
      weights.fragments[k][0] = f.x, weights.fragments[k][1] = f.y;
      weights.fragments[k][2] = f.z, weights.fragments[k][3] = f.w;
    }
    weights.scale(join_);
    if (!starts) rescale(acc, 0, join_[0].keep), rescale(acc, 1, join_[1].keep);
    ptx::pin<kTilePages * 4>(weights.fragments[0]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) {
      const uint32_t at = ptx::shared_address(stage) + k * kPageRows * 128;
      ptx::wgmma_bf16<kSlice, ptx::Major::kMN>(
          acc, weights.fragments[k], ptx::wgmma_descriptor(at, 0, 1024, ptx::Swizzle::k128), !starts || k > 0);
    }
    ptx::wgmma_commit();
    weights.add_to(sums, join_);
  }

  __device__ __forceinline__ void wait() {
    ptx::wgmma_wait<0>();
    ptx::pin<kSlice / 2>(acc);
  }

  float acc[kSlice / 2];
  mma::MaxSum sums[2];

 private:
  bool both_;
  Join join_[2];
};

__device__ __forceinline__ void leave(const MmaAttention& a, const SliceWork& work, const float (&acc)[kSlice / 2],
                                      const mma::MaxSum (&node)[2]) {
  float* const slot = a.partials + static_cast<int64_t>(work.part) * a.slot.floats();
  const int half = work.slice / (kSlices / 2), first = work.slice % (kSlices / 2) * (kSlice / 16);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (h == 1 && few_queries(work.unit)) continue;
    if (work.pieces == 1) {
      store_out(a, work.unit, h, work.slice * kSlice, acc, node[h]);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kSlice / 16; ++i) {
      const int at = slot_offset(half, h, first + i, static_cast<int>(threadIdx.x) % kGroup);
      *reinterpret_cast<float4*>(slot + at) = four(acc + 8 * i, h);
    }
    if (first == 0) reinterpret_cast<mma::MaxSum*>(slot + slot_sums(half))[thread_row(h)] = node[h];
  }
}

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

// A block for each slice of each piece of each row's tiles of heads; a warpgroup copies, one multiplies.
__global__ void __launch_bounds__(2 * kGroup) add_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
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
  SliceCopier copier(a, *step, work);
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
  if (static_cast<int>(threadIdx.x) / kGroup == 0) {
    for_tiles([&](int, int stage, int parity) {
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
  kernels.add_shared_bytes =
      latent::kSliceStages * latent::kSliceStage + static_cast<int>(sizeof(latent::SliceExchange));
  cuda::allow_shared(kernels.weigh, kernels.shared_bytes);
  cuda::allow_shared(kernels.add, kernels.add_shared_bytes);
}

}  // namespace weir
