// Tiles of key and value rows in shared memory: copied from pages as BF16, swizzled against bank conflicts.
#pragma once

#include "device/cuda/ptx.h"
#include "ops/attention/attention_mma.h"

namespace weir {

namespace mma {

// Rows of 16-byte chunks in shared memory, a multiple of eight chunks long: swizzled, so that eight rows of a matrix
// lie in different banks.
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk, int row_bytes) {
  return static_cast<uint32_t>(row * row_bytes + ((chunk ^ (row & 7)) << 4));
}

__device__ __forceinline__ void store_chunk(uint32_t at, const std::byte* base, uint4 value) {
  *reinterpret_cast<uint4*>(const_cast<std::byte*>(base) + at) = value;
}

struct Eight {
  float v[8];

  __device__ __forceinline__ uint4 rounded() const {
    return {cuda::pack_bf16(v[0], v[1]), cuda::pack_bf16(v[2], v[3]), cuda::pack_bf16(v[4], v[5]),
            cuda::pack_bf16(v[6], v[7])};
  }
};

// Key or value rows of one KV head.
struct TileSource {
  PagedRows rows;
  StateDtype dtype;
  int dim;
  bool direct;  // BF16 in whole, aligned chunks

  TileSource() = default;
  __device__ TileSource(const PagedRows& from, StateDtype type, int64_t first_element, int64_t elements, int padded)
      : rows(from), dtype(type), dim(static_cast<int>(elements)) {
    rows.base += first_element * state_bytes(type);
    const uint64_t bits = reinterpret_cast<uintptr_t>(rows.base) | static_cast<uint64_t>(rows.block_bytes) |
                          static_cast<uint64_t>(rows.row_bytes);
    direct = type == StateDtype::kBf16 && dim == padded && bits % 16 == 0;
  }
};

// Where chunk c of row r of a tile lies: rows as they are, swizzled.
template <int kDim>
struct SwizzledRows {
  static __device__ __forceinline__ uint32_t offset(int r, int c) { return chunk_offset(r, c, kDim * 2); }
};

// As wgmma wants them: 64 elements of all rows, then the next 64.
struct ColumnsOf64 {
  static constexpr int kBytes = kKeyTile * 128;  // from 64 elements to the next
  static __device__ __forceinline__ uint32_t offset(int r, int c) {
    return static_cast<uint32_t>(c / 8 * kBytes) + chunk_offset(r, c % 8, 128);
  }
};

// Loads positions [tile, tile + kPositions) of [first, last] to `to`, zeros for the others: by kThreads threads, whole
// warps, of which this one is number `thread`. Loops are left as such: unrolled, they don't fit the instruction cache.
template <int kDim, int kThreads, class Place = SwizzledRows<kDim>, int kPositions = kKeyTile>
__device__ __forceinline__ void load_tile(const TileSource& source, int tile, int first, int last, std::byte* to,
                                          int thread) {
  constexpr int kChunks = kDim / 8, kLanes = kChunks < 32 ? kChunks : 32, kRows = kThreads / kLanes;
  constexpr int kPageRows = static_cast<int>(kPagePositions), kPages = kPositions / kPageRows;
  static_assert(kPageRows % kRows == 0);  // a pass over all threads stays within a page
  const int lane = thread % kLanes, first_row = thread / kLanes;
  const int from = first - tile, end = last - tile;
  const uint32_t to_address = cuda::ptx::shared_address(to);
  if (source.direct && source.rows.selected == nullptr) {
    // A lane for each page: looked up together.
    const int page_row = thread % 32 % kPages * kPageRows;
    const bool has_page = page_row + kPageRows > from && page_row <= end;
    const uint32_t pages = has_page ? static_cast<uint32_t>(source.rows.pages[(tile + page_row) / kPageRows]) : 0;
    const auto place = [&](int r, int k) { return to_address + Place::offset(r, lane + k); };
#pragma unroll 1
    for (int p = 0; p < kPages; ++p) {
      const int64_t page = __shfl_sync(cuda::kAllLanes, pages, p);
      const int page_first = p * kPageRows + first_row;
      const std::byte* row =
          source.rows.base + page * source.rows.block_bytes + first_row * source.rows.row_bytes + lane * 16;
      if (p * kPageRows >= from && p * kPageRows + kPageRows - 1 <= end) {
#pragma unroll
        for (int i = 0; i < kPageRows / kRows; ++i, row += kRows * source.rows.row_bytes) {
#pragma unroll
          for (int k = 0; k < kChunks; k += kLanes) {
            if (kChunks % kLanes != 0 && lane + k >= kChunks) continue;
            cuda::ptx::copy_async16(place(page_first + i * kRows, k), row + k * 16);
          }
        }
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < kPageRows / kRows; ++i, row += kRows * source.rows.row_bytes) {
        const int r = page_first + i * kRows;
        const bool live = r >= from && r <= end;
#pragma unroll 1
        for (int k = 0; lane + k < kChunks; k += kLanes) {
          // A copy that isn't live reads nothing, but its address must be one.
          cuda::ptx::copy_async16(place(r, k), live ? row + k * 16 : source.rows.base, live);
        }
      }
    }
    return;
  }
#pragma unroll 1
  for (int r = first_row; r < kPositions; r += kRows) {
    const bool live = r >= from && r <= end;
    const std::byte* row = source.rows.row(live ? tile + r : last);
#pragma unroll 1
    for (int c = lane; c < kChunks; c += kLanes) {
      if (source.direct) {
        cuda::ptx::copy_async16(to_address + Place::offset(r, c), row + c * 16, live);
        continue;
      }
      Eight eight{};
#pragma unroll 1
      for (int e = 0; e < 8 && live && c * 8 + e < source.dim; ++e) {
        eight.v[e] = stored_element(source.dtype, row, c * 8 + e);
      }
      store_chunk(Place::offset(r, c), to, eight.rounded());
    }
  }
}

// Queries [first, first + kCount) of a unit as BF16, zeros where there are none, by `threads` threads of which this one
// is number `thread`; kBatch chunks are under way together.
template <int kDim, int kCount, int kBatch, class Place>
__device__ __forceinline__ void load_queries(const MmaAttention& a, const AttentionWork& work, int first, std::byte* to,
                                             int thread, int threads) {
  constexpr int kChunks = kDim / 8;
  const int key_dim = static_cast<int>(a.args.key_dim);
  const auto at = [&](int n) {
    const int row = work.rows == 1 ? 0 : n / work.heads;
    return (work.row + row) * a.args.q_stride + (work.first_head + n - row * work.heads) * key_dim;
  };
  const auto query = [&](int n) { return a.args.q + at(n); };
  const auto* bf16 = a.args.q_type == RowType::kBf16 ? reinterpret_cast<const uint16_t*>(a.args.q) : nullptr;
  if (bf16 != nullptr && a.vectors && key_dim == kDim) {
#pragma unroll 1
    for (int begin = thread; begin < kCount * kChunks; begin += 2 * kBatch * threads) {
      uint4 v[2 * kBatch];
#pragma unroll
      for (int b = 0; b < 2 * kBatch; ++b) {
        const int i = begin + b * threads, n = first + i / kChunks;
        const bool live = n < work.count && i < kCount * kChunks;
        v[b] = live ? *reinterpret_cast<const uint4*>(bf16 + at(n) + i % kChunks * 8) : uint4{};
      }
#pragma unroll
      for (int b = 0; b < 2 * kBatch; ++b) {
        const int i = begin + b * threads;
        if (i < kCount * kChunks) store_chunk(Place::offset(i / kChunks, i % kChunks), to, v[b]);
      }
    }
    return;
  }
  if (bf16 == nullptr && a.vectors && key_dim == kDim) {
#pragma unroll 1
    for (int begin = thread; begin < kCount * kChunks; begin += kBatch * threads) {
      float4 v[kBatch][2];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = begin + b * threads, n = first + i / kChunks;
        const bool live = n < work.count && i < kCount * kChunks;
        const float4* q = reinterpret_cast<const float4*>(query(live ? n : 0) + i % kChunks * 8);
        v[b][0] = live ? q[0] : float4{};
        v[b][1] = live ? q[1] : float4{};
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = begin + b * threads;
        if (i >= kCount * kChunks) break;
        const Eight eight{v[b][0].x, v[b][0].y, v[b][0].z, v[b][0].w, v[b][1].x, v[b][1].y, v[b][1].z, v[b][1].w};
        store_chunk(Place::offset(i / kChunks, i % kChunks), to, eight.rounded());
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < kCount * kChunks; i += threads) {
    const int n = first + i / kChunks, c = i % kChunks;
    Eight eight{};
#pragma unroll 1
    for (int e = 0; e < 8 && n < work.count && c * 8 + e < key_dim; ++e) {
      eight.v[e] = bf16 != nullptr ? cuda::low_bf16(bf16[at(n) + c * 8 + e]) : query(n)[c * 8 + e];
    }
    store_chunk(Place::offset(i / kChunks, c), to, eight.rounded());
  }
}

}  // namespace mma
}  // namespace weir
