// Attention over latents: a tile's scores by wgmma, and what is made of them.
#pragma once

#include "ops/attention/attention_latent_copy_cuda.cuh"

namespace weir::latent {

// The products of 64 queries and a tile's keys, by a warpgroup.
__device__ __forceinline__ void multiply_keys(uint32_t queries, uint32_t keys, float (&scores)[kKeyTile / 8][4]) {
  ptx::wgmma_fence();
#pragma unroll 1
  for (int column = 0; column < kKeyDim / 64; ++column) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ptx::wgmma_bf16_shared<kKeyTile>(scores[0], k_major(queries + column * ColumnsOf64::kBytes + k * 32, 1024),
                                       k_major(keys + column * Rows8::kColumnBytes + k * 32, Rows8::kBytes),
                                       column + k > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin<kKeyTile / 2>(scores[0]);
}

// A tile's maximum joins that of its piece: the piece's sums are to be multiplied by `keep`, the tile's weights by
// `add`, two of them in BF16.
struct Join {
  float keep = 1;
  uint32_t add = 0x3f803f80u;

  Join() = default;
  __device__ __forceinline__ Join(float& piece, float tile) {
    const float all = fmaxf(piece, tile);
    keep = mma::power(piece, all);
    const uint32_t bits = __float_as_uint(mma::power(tile, all));
    add = bits | bits >> 16;
    piece = all;
  }
};

// Weights of a tile, A fragments of m16n8k16.
struct TileWeights {
  uint32_t fragments[kKeyTile / 16][4];

  // Gives the maximum of the thread's queries, which the weights are relative to. Without `both` the second is none.
  __device__ __forceinline__ void make(const float (&scores)[kKeyTile / 8][4], float c, bool both, float (&max)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      max[h] = -__builtin_inff();
      if (h == 1 && !both) {
#pragma unroll
        for (int n = 0; n < kKeyTile / 8; ++n) fragments[n / 2][n % 2 * 2 + h] = 0;
        continue;
      }
      float most = scores[0][2 * h];
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) most = fmaxf(most, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      max[h] = ceilf(cuda::warp_max<4>(most) * c);
      const float shift = max[h] == -__builtin_inff() ? 0.f : -max[h];
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
        const float* pair = scores[n] + 2 * h;
        fragments[n / 2][n % 2 * 2 + h] =
            cuda::pack_bf16(ptx::exp2_approx(fmaf(pair[0], c, shift)), ptx::exp2_approx(fmaf(pair[1], c, shift)));
      }
    }
  }

  __device__ __forceinline__ void scale(const Join (&join)[2]) {
#pragma unroll
    for (auto& fragment : fragments) {
#pragma unroll
      for (int i = 0; i < 4; ++i) fragment[i] = ptx::mul_bf16x2(fragment[i], join[i % 2].add);
    }
  }

  __device__ __forceinline__ void add_to(mma::MaxSum (&piece)[2], const Join (&join)[2]) const {
    float sum[4] = {};
#pragma unroll
    for (const auto& fragment : fragments) ptx::mma_bf16(sum, fragment, mma::Softmax::kOnes, mma::Softmax::kOnes);
#pragma unroll
    for (int h = 0; h < 2; ++h) piece[h].l = fmaf(piece[h].l, join[h].keep, sum[2 * h]);
  }
};

// acc, of `kCount` columns, where a warp's factors are not one.
template <int kCount>
__device__ __forceinline__ void rescale(float (&acc)[kCount], int h, float scale) {
  if (__all_sync(cuda::kAllLanes, scale == 1.f)) return;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    acc[4 * j + 2 * h] *= scale;
    acc[4 * j + 2 * h + 1] *= scale;
  }
}

// By four neighbouring threads: thread i gets the i-th word of each.
__device__ __forceinline__ uint4 transpose_words(uint4 w) {
  const bool odd = (threadIdx.x & 1) != 0, high = (threadIdx.x & 2) != 0;
  const auto from = [](uint32_t x, int lanes) { return __shfl_xor_sync(cuda::kAllLanes, x, lanes); };
  const uint32_t x = from(odd ? w.x : w.y, 1), y = from(odd ? w.z : w.w, 1);
  w = odd ? uint4{x, w.y, y, w.w} : uint4{w.x, x, w.z, y};
  const uint32_t p = from(high ? w.x : w.z, 2), q = from(high ? w.y : w.w, 2);
  return high ? uint4{p, q, w.z, w.w} : uint4{w.x, w.y, p, q};
}

// Columns from `first` on of a query's sums become out; by whole warps.
template <int kCount>
__device__ __forceinline__ void store_out(const MmaAttention& a, const AttentionWork& unit, int h, int first,
                                          const float (&acc)[kCount], const mma::MaxSum& sum) {
  const int n = thread_query(unit, h), c = static_cast<int>(threadIdx.x) % 4;
  const bool live = n < unit.count;
  const float scale = live ? mma::out_scale(sum, a.args.sinks, unit.first_head + n % unit.heads) : 0.f;
  // The addition makes zeros positive, which in a sum of other zeros could be either.
  const auto value = [&](int j, int i) { return fmaf(acc[4 * j + 2 * h + i], scale, 0.f); };
  const mma::ResultRow out(a, unit, live ? n : 0);
  if (a.out_chunks) {
    const auto word = [&](int j) { return cuda::pack_bf16(value(j, 0), value(j, 1)); };
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 4) {
      const uint4 words = transpose_words({word(j), word(j + 1), word(j + 2), word(j + 3)});
      if (live) out.store_chunk(first + 8 * (j + c), words);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    if (live) out.store(first + 8 * j + 2 * c, value(j, 0), value(j, 1));
  }
}

// The slot's four numbers of 16 columns.
__device__ __forceinline__ float4 four(const float* acc, int h) {
  return {acc[2 * h], acc[2 * h + 1], acc[4 + 2 * h], acc[5 + 2 * h]};
}

}  // namespace weir::latent
