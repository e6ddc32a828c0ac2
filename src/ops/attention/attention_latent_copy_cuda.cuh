// Attention over latents: what lies where in shared memory, and how queries and keys come there; the rest is in
// attention_latent_cuda.cuh.
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
  uint64_t full[kStages], weights_full[kStages];  // a tile is there, its weights are
  uint64_t empty[kStages][kTilePages];            // a page has been used
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
  const uint32_t to_address = ptx::shared_address(to);
#pragma unroll 1
  for (int i = thread; i < rows * 8 * kParts; i += threads) {
    const int n = i / 8 % rows, part = i / 8 / rows, c = i % 8;
    const int row = unit.rows == 1 ? 0 : n / unit.heads;
    const int64_t first = (unit.row + row) * a.args.q_stride + (unit.first_head + n - row * unit.heads) * kKeyDim +
                          part * kColumns * 64 + c * 8;
    const uint32_t at = (few ? SpreadColumnsOf64::offset(n, c) : ColumnsOf64::offset(n, c)) +
                        static_cast<uint32_t>(part * kColumns * ColumnsOf64::kBytes);
    if (a.args.q_type == RowType::kBf16) {
      const auto* q = reinterpret_cast<const uint16_t*>(a.args.q);
      const bool live = n < unit.count;
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        ptx::copy_async16(to_address + at + k * ColumnsOf64::kBytes, live ? q + first + k * 64 : q, live);
      }
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
  ptx::commit_copies();
  ptx::wait_copies<0>();
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

}  // namespace weir::latent
