// Attention over latents, keys of 576 whose first 512 elements are the values, by wgmma; numeric specification in
// attention.h. A block has four warpgroups, which hand tiles of 64 positions on to each other:
//   one copies tiles from the pages into two stages of shared memory;
//   one multiplies its 64 queries (rows of a span times heads) by a tile's keys and makes weights of the scores, which
//   take the place of the keys' last 64 elements in the stage;
//   two multiply the weights by the tile's values, each half of the dimensions, and merge pieces. They give a stage
//   back page by page, so that the next copies begin early.
// Pieces are merged as a tree. A node is left in a slot as the threads have it: of each half of the dimensions and h
// the thread's numbers by fours (slot_offset), then m and l of the queries for each half.
#pragma once

#include "ops/attention/attention_softmax_cuda.cuh"
#include "ops/attention/attention_work_cuda.cuh"

namespace weir::latent {

namespace ptx = cuda::ptx;

inline constexpr int kKeyDim = 576, kValueDim = 512, kQueries = 64, kStages = 2;
inline constexpr int kGroup = 128;  // threads of a warpgroup
inline constexpr int kThreads = 4 * kGroup;
inline constexpr int kHalf = kValueDim / 2;  // dimensions of a warpgroup

using mma::ColumnsOf64;
inline constexpr int kTileBytes = kKeyTile * kKeyDim * 2;  // of keys, and of queries
inline constexpr int kPageRows = static_cast<int>(kPagePositions), kTilePages = kKeyTile / kPageRows;

// A tile's place: eight positions, of these 64 elements, then the next 64; then the next eight positions.
struct Rows8 {
  static constexpr int kColumnBytes = 8 * 128, kBytes = kKeyDim / 64 * kColumnBytes;
  static __device__ __forceinline__ uint32_t offset(int r, int c) {
    return static_cast<uint32_t>(r / 8 * kBytes + c / 8 * kColumnBytes) + mma::chunk_offset(r % 8, c % 8, 128);
  }
};
inline constexpr int kPageBytes = kPageRows / 8 * Rows8::kBytes;
// Where weights lie in a stage, tiles of 8 x 8 without swizzle: with eight positions those of all queries for them. So
// they are given back with their page.
inline constexpr int kWeightsAt = kValueDim / 64 * Rows8::kColumnBytes;
static_assert(kQueries * 8 * 2 == Rows8::kColumnBytes);

// Behind queries and stages in shared memory.
struct Exchange {
  // For each row of wgmma, from the warpgroup that makes weights, with them.
  struct Scales {
    float scale[kQueries];        // what acc is multiplied by before a tile is added
    mma::MaxSum piece[kQueries];  // at a piece's end
  } scales[kStages];
  uint64_t full[kStages], scored[kStages], weights_full[kStages];  // a tile is there, has been scored, has weights
  uint64_t empty[kStages][kTilePages];                             // a page has been used
  WorkRing ring;
  AttentionPlan plan;
};
inline constexpr int kExchangeAt = kTileBytes * (1 + kStages);
inline constexpr int kSharedBytes = kExchangeAt + static_cast<int>(sizeof(Exchange));

__device__ __forceinline__ uint64_t k_major(uint32_t address, int stride) {
  return ptx::wgmma_descriptor(address, 16, stride, ptx::Swizzle::k128);
}

// Units of few queries have them in the first eight of each sixteen rows of wgmma, so that all warps share the work,
// and half of each thread's numbers belong to none.
inline constexpr int kFewQueries = kQueries / 2;
struct SpreadColumnsOf64 {
  static __device__ __forceinline__ uint32_t offset(int r, int c) { return ColumnsOf64::offset(r / 8 * 16 + r % 8, c); }
};

// Which of wgmma's rows a thread's numbers belong to, h being 0 or 1, and the query there.
__device__ __forceinline__ int thread_row(int h) {
  return static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * h;
}
__device__ __forceinline__ bool few_queries(const AttentionWork& unit) { return unit.count <= kFewQueries; }
__device__ __forceinline__ int thread_query(const AttentionWork& unit, int h) {
  const int row = thread_row(h);
  return few_queries(unit) ? row / 16 * 8 + row % 8 : row;
}

// The unit's queries by `threads` threads of which this one is number `thread`: eight of them for 64 elements of a row.
__device__ __forceinline__ void load_queries(const MmaAttention& a, const AttentionWork& unit, std::byte* to,
                                             int thread, int threads) {
  const bool few = few_queries(unit);
  if (!a.vectors) {
    if (few) return mma::load_queries<kKeyDim, kFewQueries, 1, SpreadColumnsOf64>(a, unit, 0, to, thread, threads);
    return mma::load_queries<kKeyDim, kQueries, 1, ColumnsOf64>(a, unit, 0, to, thread, threads);
  }
  constexpr int kParts = 3, kColumns = kKeyDim / 64 / kParts;  // columns of 64, whose loads are under way together
  const int rows = few ? kFewQueries : kQueries;
#pragma unroll 1
  for (int i = thread; i < rows * 8 * kParts; i += threads) {
    const int n = i / 8 % rows, part = i / 8 / rows, c = i % 8;
    const int row = unit.rows == 1 ? 0 : n / unit.heads;
    const int64_t first = (unit.row + row) * a.args.q_stride + (unit.first_head + n - row * unit.heads) * kKeyDim +
                          part * kColumns * 64 + c * 8;
    const uint32_t at = (few ? SpreadColumnsOf64::offset(n, c) : ColumnsOf64::offset(n, c)) +
                        static_cast<uint32_t>(part * kColumns * ColumnsOf64::kBytes);
    if (a.args.q_type == RowType::kBf16) {
      uint4 v[kColumns] = {};
      if (n < unit.count) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          v[k] = *reinterpret_cast<const uint4*>(reinterpret_cast<const uint16_t*>(a.args.q) + first + k * 64);
        }
      }
#pragma unroll
      for (int k = 0; k < kColumns; ++k) mma::store_chunk(at + k * ColumnsOf64::kBytes, to, v[k]);
      continue;
    }
    const float* const q = a.args.q + first;
    float4 v[kColumns][2] = {};
    if (n < unit.count) {
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        v[k][0] = *reinterpret_cast<const float4*>(q + k * 64);
        v[k][1] = *reinterpret_cast<const float4*>(q + k * 64 + 4);
      }
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const mma::Eight eight{v[k][0].x, v[k][0].y, v[k][0].z, v[k][0].w, v[k][1].x, v[k][1].y, v[k][1].z, v[k][1].w};
      mma::store_chunk(at + k * ColumnsOf64::kBytes, to, eight.rounded());
    }
  }
}

// Where thread t of a warpgroup leaves its i-th four numbers of h: those of columns 16 i + 2 (t % 4), + 1, + 8, + 9.
__device__ __forceinline__ int slot_offset(int half, int h, int i, int t) {
  return (((half * 2 + h) * (kHalf / 16) + i) * kGroup + t) * 4;
}
__device__ __forceinline__ int slot_sums(int half) { return kQueries * (kValueDim + 2 * half); }

// --- copies ---------------------------------------------------------------------------------------------------------

// Counts tiles, over all units: which stage, and which of its uses.
struct Turn {
  int count = 0;

  __device__ int stage() const { return count % kStages; }
  __device__ int parity() const { return count / kStages & 1; }
  __device__ void next() { ++count; }
};

// Copies the tiles of units whose rows lie in pages as BF16.
class PageCopier {
 public:
  __device__ PageCopier(const mma::TileSource& keys, const AttentionWork& unit)
      : rows_(keys.rows), first_(unit.first), last_(unit.last) {
    row_ = static_cast<int>(threadIdx.x) / 8;
    from_ = row_ * rows_.row_bytes + threadIdx.x % 8 * 16;
    to_ = Rows8::offset(row_, threadIdx.x % 8);
    look_up(unit.first_tile());
  }

  // Waits for each page of the stage to be empty; in the end every thread arrives at `full`.
  __device__ void copy(int tile, uint32_t stage, uint64_t* empty, int parity, uint64_t* full) {
    const uint32_t pages = pages_;
    look_up(tile + kKeyTile);
#pragma unroll 1
    for (int p = 0; p < kTilePages; ++p) {
      const int position = tile + p * kPageRows + row_;
      const bool live = position >= first_ && position <= last_;
      const std::byte* from = rows_.base + __shfl_sync(cuda::kAllLanes, pages, p) * rows_.block_bytes + from_;
      if (!live) from = rows_.base;  // a copy that isn't live reads nothing, but its address must be one
      ptx::mbarrier_wait(empty + p, parity);
#pragma unroll
      for (int column = 0; column < kKeyDim / 64; ++column) {
        ptx::copy_async16(stage + to_ + p * kPageBytes + column * Rows8::kColumnBytes, from + column * 128, live,
                          policy_);
      }
    }
    ptx::arrive_after_copies(full);
  }

 private:
  // A lane for each page, a tile ahead.
  __device__ void look_up(int tile) {
    const int position = tile + static_cast<int>(threadIdx.x) % kTilePages * kPageRows;
    const bool any = position + kPageRows > first_ && position <= last_;
    pages_ = any ? static_cast<uint32_t>(rows_.pages[position / kPageRows]) : 0;
  }

  const PagedRows rows_;
  int first_, last_, row_;
  int64_t from_;
  uint32_t to_, pages_;
  const uint64_t policy_ = ptx::read_once();
};

// Waits for the kernel before this one where told to: before the first tile with positions of this step, since those
// before are as earlier steps have left them.
__device__ __forceinline__ void copy_tiles(const MmaAttention& a, const StepView& step, const AttentionWork& unit,
                                           std::byte* stages, Exchange& exchange, Turn& turn, bool wait) {
  const SpanView& span = span_of(step, a.selected, unit.entry);
  const mma::TileSource keys(paged_rows(step, span, a.args.key, a.selected.of(unit.entry)), a.args.dtype, 0, kKeyDim,
                             kKeyDim);
  if (keys.direct && keys.rows.selected == nullptr) {
    PageCopier copier(keys, unit);
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      if (wait && tile + kKeyTile > static_cast<int>(span.first_position)) {
        ptx::wait_for_previous();
        wait = false;
      }
      copier.copy(tile, ptx::shared_address(stages) + turn.stage() * kTileBytes, exchange.empty[turn.stage()],
                  turn.parity() ^ 1, &exchange.full[turn.stage()]);
    }
    if (wait) ptx::wait_for_previous();
    return;
  }
  if (wait) ptx::wait_for_previous();
#pragma unroll 1
  for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
    for (uint64_t& empty : exchange.empty[turn.stage()]) ptx::mbarrier_wait(&empty, turn.parity() ^ 1);
    mma::load_tile<kKeyDim, kGroup, Rows8>(keys, tile, unit.first, unit.last, stages + turn.stage() * kTileBytes,
                                           threadIdx.x);
    if (keys.direct) {
      ptx::arrive_after_copies(&exchange.full[turn.stage()]);
    } else {
      ptx::mbarrier_arrive(&exchange.full[turn.stage()]);
    }
  }
}

// --- weights --------------------------------------------------------------------------------------------------------

class Weigher {
 public:
  __device__ Weigher(const MmaAttention& a, std::byte* shared, Exchange& exchange)
      : a_(a), queries_(ptx::shared_address(shared)), to_(exchange) {}

  __device__ void run(const AttentionWork& unit, Turn& turn) {
    softmax_.start_unit(a_, unit, thread_query(unit, 0), thread_query(unit, 1));
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      if (unit.starts_piece(tile)) softmax_.start_piece();
      add_tile(tile, unit.ends_piece(tile), !few_queries(unit), turn);
    }
  }

 private:
  __device__ void add_tile(int tile, bool ends_piece, bool both, const Turn& turn) {
    float scores[kKeyTile / 8][4];
    multiply(turn, scores);
    softmax_.mask(tile, scores, both);
    float scale[2];
    uint32_t weights[kKeyTile / 16][4];
    softmax_.weigh(scores, a_.scale2, weights, scale, both);
    // The keys' last elements have been used by the other warps too.
    ptx::named_barrier_sync(3, kGroup);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t to = queries_ + kTileBytes * (1 + turn.stage()) + kWeightsAt + lane / 16 * Rows8::kBytes +
                        (warp * 16 + lane % 16) * 16;
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) ptx::store_matrix_x4(to + k * kPageBytes, weights[k]);
    Exchange::Scales& scales = to_.scales[turn.stage()];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane % 4 != 0) continue;
      scales.scale[thread_row(h)] = scale[h];
      if (ends_piece) scales.piece[thread_row(h)] = {softmax_.max[h], softmax_.sum[2 * h]};
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&to_.weights_full[turn.stage()]);
  }

  __device__ void multiply(const Turn& turn, float (&scores)[kKeyTile / 8][4]) {
    ptx::mbarrier_wait(&to_.full[turn.stage()], turn.parity());
    ptx::fence_async_shared();
    const uint32_t keys = queries_ + kTileBytes * (1 + turn.stage());
    ptx::wgmma_fence();
#pragma unroll 1
    for (int column = 0; column < kKeyDim / 64; ++column) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        ptx::wgmma_bf16_shared<kKeyTile>(scores[0], k_major(queries_ + column * ColumnsOf64::kBytes + k * 32, 1024),
                                         k_major(keys + column * Rows8::kColumnBytes + k * 32, Rows8::kBytes),
                                         column + k > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin<kKeyTile / 2>(scores[0]);
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&to_.scored[turn.stage()]);
  }

  const MmaAttention& a_;
  uint32_t queries_;
  Exchange& to_;
  mma::Softmax softmax_;
};

// --- values ---------------------------------------------------------------------------------------------------------

class Adder {
 public:
  // half: which dimensions.
  __device__ Adder(const MmaAttention& a, int half, std::byte* shared, Exchange& exchange)
      : a_(a),
        half_(half),
        stages_(ptx::shared_address(shared) + kTileBytes),
        from_(exchange),
        nodes_(a.nodes + static_cast<int64_t>(blockIdx.x) * kTreeLevels * a.slot.floats()) {}

  __device__ void run(const AttentionWork& unit, float* slot, Turn& turn) {
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      ptx::mbarrier_wait(&from_.weights_full[turn.stage()], turn.parity());
      const Exchange::Scales& scales = from_.scales[turn.stage()];
      const bool starts_piece = unit.starts_piece(tile);
      if (!starts_piece) rescale(scales);
      const bool ends_piece = unit.ends_piece(tile);
      if (ends_piece) node_[0] = scales.piece[thread_row(0)], node_[1] = scales.piece[thread_row(1)];
      if (tile + kKeyTile <= unit.last) let_next_score(turn);
      multiply(turn, starts_piece);
      if (ends_piece) end_piece(unit, tile, slot);
    }
  }

 private:
  // The next tile's scores first, if that tile is there: then these products run while its weights are made.
  __device__ void let_next_score(Turn turn) {
    turn.next();
    if (!ptx::mbarrier_test_wait(&from_.full[turn.stage()], turn.parity())) return;
    ptx::mbarrier_wait(&from_.scored[turn.stage()], turn.parity());
  }

  __device__ void rescale(const Exchange::Scales& scales) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = scales.scale[thread_row(h)];
      if (__all_sync(cuda::kAllLanes, scale == 1.f)) continue;
#pragma unroll
      for (int j = 0; j < kHalf / 8; ++j) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) acc_[4 * j + i] *= scale;
      }
    }
  }

  __device__ void multiply(const Turn& turn, bool starts_piece) {
    ptx::mbarrier_wait(&from_.full[turn.stage()], turn.parity());
    const uint32_t stage = stages_ + turn.stage() * kTileBytes, weights = stage + kWeightsAt;
    const uint32_t values = stage + half_ * (kHalf / 64) * Rows8::kColumnBytes;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {  // ptxas refuses 256 dimensions at once in so large a block
        const uint32_t at = values + part * (kHalf / 2 / 64) * Rows8::kColumnBytes + k * kPageBytes;
        ptx::wgmma_bf16_shared<kHalf / 2, ptx::Major::kK, ptx::Major::kMN>(
            acc_ + part * (kHalf / 4),
            ptx::wgmma_descriptor(weights + k * kPageBytes, Rows8::kBytes, 128, ptx::Swizzle::kNone),
            ptx::wgmma_descriptor(at, Rows8::kColumnBytes, Rows8::kBytes, ptx::Swizzle::k128), !starts_piece || k > 0);
      }
      ptx::wgmma_commit();
    }
    give_back<3>(turn, 0);
    give_back<2>(turn, 1);
    give_back<1>(turn, 2);
    give_back<0>(turn, 3);
    ptx::pin<kHalf / 2>(acc_);
  }

  // Page p of the stage, once no more than kPending products are under way.
  template <int kPending>
  __device__ void give_back(const Turn& turn, int p) {
    ptx::wgmma_wait<kPending>();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&from_.empty[turn.stage()][p]);
  }

  // The piece, a leaf of the tree, becomes the largest node that it ends: it takes in the nodes to its left. What lies
  // to the left of the unit is not its matter.
  __device__ void end_piece(const AttentionWork& unit, int tile, float* slot) {
    const int piece = tile >> unit.piece_log, halves = few_queries(unit) ? 1 : 2;
    const bool last = unit.is_last(tile);
#pragma unroll 1
    for (int level = 0; level < kTreeLevels; ++level) {
      const bool top = level == kTreeLevels - 1, right = top || (piece >> level & 1) != 0;
      const float* const left = nodes_ + level * a_.slot.floats();
      if (right && piece >> level << level > unit.first_piece) merge(left, halves);
      if (!last && (top || !right)) return leave(nodes_ + level * a_.slot.floats(), halves);
    }
    if (!unit.whole()) return leave(slot, halves);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = thread_query(unit, h);
      if (h >= halves || n >= unit.count) continue;
      const float scale = mma::out_scale(node_[h], a_.args.sinks, unit.first_head + n % unit.heads);
      const mma::ResultRow out(a_, unit, n);
      const int column = half_ * kHalf + thread() % 4 * 2;
      // The addition makes zeros positive, which in a sum of other zeros could be either.
#pragma unroll
      for (int j = 0; j < kHalf / 8; ++j) {
        out.store(column + 8 * j, fmaf(acc_[4 * j + 2 * h], scale, 0.f), fmaf(acc_[4 * j + 2 * h + 1], scale, 0.f));
      }
    }
  }

  // acc becomes what is in the slot merged with acc.
  __device__ void merge(const float* slot, int halves) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h >= halves) continue;
      mma::MaxSum left = reinterpret_cast<const mma::MaxSum*>(slot + slot_sums(half_))[thread_row(h)];
      const mma::Merge merge = mma::merge(left, node_[h]);
      node_[h] = left;
      constexpr int kBatch = 8;  // loads under way together
#pragma unroll
      for (int first = 0; first < kHalf / 16; first += kBatch) {
        float4 before[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          before[i] = *reinterpret_cast<const float4*>(slot + slot_offset(half_, h, first + i, thread()));
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          float* const pair = acc_ + 8 * (first + i) + 2 * h;
          pair[0] = fmaf(before[i].x, merge.keep, pair[0] * merge.add);
          pair[1] = fmaf(before[i].y, merge.keep, pair[1] * merge.add);
          pair[4] = fmaf(before[i].z, merge.keep, pair[4] * merge.add);
          pair[5] = fmaf(before[i].w, merge.keep, pair[5] * merge.add);
        }
        ptx::pin<kBatch * 8>(acc_ + 8 * first);
      }
    }
  }

  __device__ void leave(float* slot, int halves) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h >= halves) continue;
#pragma unroll
      for (int i = 0; i < kHalf / 16; ++i) {
        const float* const pair = acc_ + 8 * i + 2 * h;
        *reinterpret_cast<float4*>(slot + slot_offset(half_, h, i, thread())) = {pair[0], pair[1], pair[4], pair[5]};
      }
      reinterpret_cast<mma::MaxSum*>(slot + slot_sums(half_))[thread_row(h)] = node_[h];  // the same by four threads
    }
  }

  static __device__ int thread() { return static_cast<int>(threadIdx.x) % kGroup; }

  const MmaAttention& a_;
  int half_;
  uint32_t stages_;
  Exchange& from_;
  float* nodes_;
  mma::MaxSum node_[2];
  float acc_[kHalf / 2];
};

}  // namespace weir::latent
