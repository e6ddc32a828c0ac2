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

// The first `count` of eight elements, and zeros; vectors: x is aligned to 16 bytes.
struct Eight {
  float v[8];

  __device__ __forceinline__ uint4 rounded() const {
    return {cuda::pack_bf16(v[0], v[1]), cuda::pack_bf16(v[2], v[3]), cuda::pack_bf16(v[4], v[5]),
            cuda::pack_bf16(v[6], v[7])};
  }
};
__device__ __forceinline__ Eight load_eight(const float* x, int count, bool vectors) {
  if (vectors && count >= 8) {
    const float4 low = reinterpret_cast<const float4*>(x)[0], high = reinterpret_cast<const float4*>(x)[1];
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  }
  Eight eight;
#pragma unroll
  for (int i = 0; i < 8; ++i) eight.v[i] = i < count ? x[i] : 0.f;
  return eight;
}

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

// Loads positions [tile, tile + kPositions) of [first, last] to `to`, zeros for the others: by kThreads threads of
// which this one is number `thread`.
template <int kDim, int kThreads, class Place = SwizzledRows<kDim>, int kPositions = kKeyTile>
__device__ __forceinline__ void load_tile(const TileSource& source, int64_t tile, int64_t first, int64_t last,
                                          std::byte* to, int thread) {
  constexpr int kChunks = kDim / 8, kLanes = kChunks < 32 ? kChunks : 32, kRows = kThreads / kLanes;
  static_assert(16 % kRows == 0);  // a pass over all threads stays within a page
  const int lane = thread % kLanes, first_row = thread / kLanes;
  const int from = static_cast<int>(first - tile), end = static_cast<int>(last - tile);
  if (!source.direct) {
    for (int r = first_row; r < kPositions; r += kRows) {
      const bool live = r >= from && r <= end;
      const std::byte* row = source.rows.row(live ? tile + r : last);
      for (int c = lane; c < kChunks; c += kLanes) {
        Eight eight{};
        for (int e = 0; e < 8 && live && c * 8 + e < source.dim; ++e) {
          eight.v[e] = stored_element(source.dtype, row, c * 8 + e);
        }
        store_chunk(Place::offset(r, c), to, eight.rounded());
      }
    }
    return;
  }
  const uint32_t to_address = cuda::ptx::shared_address(to);
  const std::byte* pages[kPositions / kPagePositions];
#pragma unroll
  for (int p = 0; p < kPositions / kPagePositions; ++p) {
    const int position = p * static_cast<int>(kPagePositions);
    const bool live = position + kPagePositions > from && position <= end && source.rows.selected == nullptr;
    pages[p] = live ? source.rows.page(tile + position) + lane * 16 : nullptr;
  }
#pragma unroll
  for (int i = 0; i < kPositions / kRows; ++i) {
    const int r = i * kRows + first_row;
    const bool live = r >= from && r <= end;
    const std::byte* row =
        pages[i * kRows / kPagePositions] + (i * kRows % kPagePositions + first_row) * source.rows.row_bytes;
    if (source.rows.selected != nullptr) row = source.rows.row(live ? tile + r : last) + lane * 16;
#pragma unroll
    for (int c = 0; c < kChunks; c += kLanes) {
      if (kChunks % kLanes != 0 && lane + c >= kChunks) continue;
      // A copy that isn't live reads nothing, but its address must be one.
      cuda::ptx::copy_async16(to_address + Place::offset(r, lane + c), live ? row + c * 16 : source.rows.base, live);
    }
  }
}

}  // namespace mma
}  // namespace weir
