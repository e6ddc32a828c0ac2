// Attention in FP32: the operations of attention.h in their order, a block of threads for each query.
#pragma once

#include "ops/attention/paged_rows_cuda.cuh"

namespace weir {

inline constexpr int kPlainThreads = 128;

// One query over rows first..position, or the rows of a list in their place.
struct PlainQuery {
  const float* q;
  PagedRows keys, values;  // from the KV head's first element
  int64_t position;
  int64_t first;
  int64_t piece;
  const float* sink;  // or null
  float* out;
};

// Dynamic shared memory.
inline int64_t plain_shared_bytes(const AttentionArgs& args) { return (args.key_dim + 2 * args.value_dim + 64) * 4; }

namespace plain {

// What a tile leaves for the block: weights in `weights`, and the new m, the factor c and the sum of the weights.
struct Tile {
  float m, c, sum;
};

__device__ inline Tile weigh(float* weights, int64_t begin, int64_t end, bool first, float m) {
  const int lane = threadIdx.x % 32;
  const auto score = [&](int j) { return j >= begin && j < end ? weights[j] : -__builtin_inff(); };
  const float s0 = score(lane), s1 = score(lane + 32);
  Tile tile;
  tile.m = math::max(m, cuda::warp_max(fmaxf(s0, s1)));
  tile.c = first ? 0.f : math::exp(m - tile.m);
  const float p0 = lane >= begin && lane < end ? math::exp(s0 - tile.m) : 0.f;
  const float p1 = lane + 32 >= begin && lane + 32 < end ? math::exp(s1 - tile.m) : 0.f;
  // Lane j mod 16 sums positions j, j + 16, j + 32, j + 48.
  const float other0 = __shfl_xor_sync(cuda::kAllLanes, p0, 16), other1 = __shfl_xor_sync(cuda::kAllLanes, p1, 16);
  const bool low = lane < 16;
  const float sum = (((low ? p0 : other0) + (low ? other0 : p0)) + (low ? p1 : other1)) + (low ? other1 : p1);
  tile.sum = cuda::warp_sum<16>(sum);
  __syncthreads();  // every warp has read the scores
  if (threadIdx.x < 32) weights[lane] = p0, weights[lane + 32] = p1;
  __syncthreads();
  return tile;
}

}  // namespace plain

__device__ inline void attend_plain(const AttentionArgs& args, const PlainQuery& query, float* shared) {
  float* const q = shared;
  float* const all = q + args.key_dim;
  float* const one = all + args.value_dim;
  float* const weights = one + args.value_dim;
  for (int64_t k = threadIdx.x; k < args.key_dim; k += kPlainThreads) q[k] = query.q[k];
  __syncthreads();
  float all_m = 0, all_l = 0;
  const int64_t first_piece = query.first / query.piece * query.piece;
  for (int64_t begin = first_piece; begin <= query.position; begin += query.piece) {
    float* const acc = begin == first_piece ? all : one;
    float m = -__builtin_inff(), l = 0;
    for (int64_t d = threadIdx.x; d < args.value_dim; d += kPlainThreads) acc[d] = 0;
    const int64_t piece_first = begin > query.first ? begin : query.first / 64 * 64;
    for (int64_t tile = piece_first; tile <= query.position && tile < begin + query.piece; tile += 64) {
      const int64_t from = (tile > query.first ? tile : query.first) - tile;
      const int64_t end = (tile + 64 < query.position + 1 ? tile + 64 : query.position + 1) - tile;
      for (int64_t j = from + threadIdx.x / 16; j < from + (end - from + 7) / 8 * 8; j += kPlainThreads / 16) {
        const std::byte* key = query.keys.row(tile + (j < end ? j : from));
        const float dot = dot_sixteen(
            args.key_dim, [&](int64_t k) { return q[k]; },
            [&](int64_t k) { return stored_element(args.dtype, key, k); });
        if (threadIdx.x % 16 == 0 && j < end) weights[j] = args.scale * dot;
      }
      __syncthreads();
      const plain::Tile t = plain::weigh(weights, from, end, tile == piece_first, m);
      m = t.m;
      l = l * t.c + t.sum;
      for (int64_t d = threadIdx.x; d < args.value_dim; d += kPlainThreads) {
        float sum = acc[d] * t.c;
        for (int64_t j = from; j < end; ++j) {
          sum = fmaf(weights[j], stored_element(args.dtype, query.values.row(tile + j), d), sum);
        }
        acc[d] = sum;
      }
      __syncthreads();  // the weights are free
    }
    if (begin == first_piece) {
      all_m = m, all_l = l;
      continue;
    }
    const float both = math::max(all_m, m);
    const float a = math::exp(all_m - both), b = math::exp(m - both);
    all_m = both;
    all_l = fmaf(all_l, a, l * b);
    for (int64_t d = threadIdx.x; d < args.value_dim; d += kPlainThreads) all[d] = fmaf(all[d], a, one[d] * b);
  }
  float scale = 1;
  if (query.sink != nullptr) {
    const float m = math::max(all_m, *query.sink);
    scale = math::exp(all_m - m);
    all_l = fmaf(all_l, scale, math::exp(*query.sink - m));
  }
  for (int64_t d = threadIdx.x; d < args.value_dim; d += kPlainThreads) query.out[d] = all[d] * scale / all_l;
}

}  // namespace weir
