// The softmax of a tile of scores, and how pieces are merged: attention.h.
#pragma once

#include "device/cuda/ptx.h"
#include "ops/attention/attention_tile_cuda.cuh"

namespace weir::mma {

// 2^(from - to) for integers from <= to; 0 from minus infinity.
__device__ __forceinline__ float power(float from, float to) {
  const float d = from - to;
  return d >= -126.f ? __int_as_float((static_cast<int>(d) + 127) << 23) : 0.f;
}

struct MaxSum {
  float m = -__builtin_inff(), l = 0;
};

// Takes `next` in; acc = fma(acc, keep, next's * add).
struct Merge {
  float keep, add;
};
__device__ __forceinline__ Merge merge(MaxSum& all, const MaxSum& next) {
  const float m = fmaxf(all.m, next.m);
  const Merge merge{power(all.m, m), power(next.m, m)};
  all.l = fmaf(all.l, merge.keep, next.l * merge.add);
  all.m = m;
  return merge;
}
// The factor of acc after the last piece: 1 / l, with the head's sink in l if there is one.
__device__ __forceinline__ float out_scale(MaxSum all, const float* sinks, int64_t head) {
  if (sinks == nullptr) return 1 / all.l;
  const float t = sinks[head] * 1.44269504088896341f;
  const float m = fmaxf(all.m, ceilf(t)), keep = power(all.m, m);
  return keep / fmaf(all.l, keep, cuda::ptx::exp2_approx(t - m));
}

// Where the numbers of a head of a row go: to out, or as FP32 to a slot.
class ResultRow {
 public:
  __device__ __forceinline__ explicit ResultRow(float* slot) : to_(slot), bf16_(false), pairs_(true) {}
  __device__ __forceinline__ ResultRow(const MmaAttention& a, int64_t row, int64_t head)
      : bf16_(a.args.out_type == RowType::kBf16), pairs_(a.out_pairs) {
    const int64_t at = row * a.args.out_stride + head * a.args.value_dim;
    to_ = bf16_ ? static_cast<void*>(reinterpret_cast<uint16_t*>(a.args.out) + at) : a.args.out + at;
  }
  // Of query n.
  __device__ __forceinline__ ResultRow(const MmaAttention& a, const AttentionWork& work, int n)
      : ResultRow(a, work.row + (work.rows == 1 ? 0 : n / work.heads),
                  work.first_head + (work.rows == 1 ? n : n % work.heads)) {}

  // Those of two numbers from an even column on that are among the first `count`.
  __device__ __forceinline__ void store(int column, float x, float y, int count = 2) const {
    if (bf16_) {
      uint16_t* to = static_cast<uint16_t*>(to_) + column;
      const uint32_t pair = cuda::pack_bf16(x, y);
      if (pairs_ && count >= 2) {
        *reinterpret_cast<uint32_t*>(to) = pair;
      } else {
        if (count > 0) to[0] = static_cast<uint16_t>(pair);
        if (count > 1) to[1] = static_cast<uint16_t>(pair >> 16);
      }
      return;
    }
    float* to = static_cast<float*>(to_) + column;
    if (pairs_ && count >= 2) {
      *reinterpret_cast<float2*>(to) = {x, y};
    } else {
      if (count > 0) to[0] = x;
      if (count > 1) to[1] = y;
    }
  }

  // Eight of BF16, where MmaAttention::out_chunks.
  __device__ __forceinline__ void store_chunk(int column, uint4 eight) const {
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(to_) + column) = eight;
  }

 private:
  void* to_;
  bool bf16_, pairs_;
};

// What a thread knows of the softmax of its two queries, of which its numbers of m16n8 are: h of 0 and 1.
struct Softmax {
  int sees_from[2], sees_to[2];  // positions
  float max[2];                  // of the piece, as is
  float sum[4];                  // mma of the weights with ones
  MaxSum merged[2];              // of the pieces before

  // The two are these queries of the unit.
  __device__ __forceinline__ void start_unit(const MmaAttention& a, const AttentionWork& work, int first, int second) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = h == 0 ? first : second;
      const int p = work.position + (work.rows == 1 ? 0 : n / work.heads);
      sees_to[h] = n < work.count ? p : -1;
      sees_from[h] = n < work.count ? a.geometry.first_visible(p) : 0;
    }
  }

  __device__ __forceinline__ void start_piece() {
    max[0] = max[1] = -__builtin_inff();
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = 0;
  }

  // Scores of positions that a query does not see become minus infinity. Without `both` the second query is none.
  __device__ __forceinline__ void mask(int tile, float (&scores)[kKeyTile / 8][4], bool both = true) const {
    const int first = tile + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h == 1 && !both) continue;
      if (sees_from[h] <= tile && sees_to[h] >= tile + kKeyTile - 1) continue;
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int j = first + 8 * n + i;
          if (j < sees_from[h] || j > sees_to[h]) scores[n][2 * h + i] = -__builtin_inff();
        }
      }
    }
  }

  // Scores of a tile become weights, A fragments of m16n8k16. acc is to be multiplied by scale[h] before. c is
  // positive, so that the largest score is the largest product.
  __device__ __forceinline__ void weigh(const float (&scores)[kKeyTile / 8][4], float c,
                                        uint32_t (&weights)[kKeyTile / 16][4], float (&scale)[2], bool both = true) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h == 1 && !both) {
        scale[h] = 1;
#pragma unroll
        for (int n = 0; n < kKeyTile / 8; ++n) weights[n / 2][n % 2 * 2 + h] = 0;
        continue;
      }
      float most = scores[0][2 * h];
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) most = fmaxf(most, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      const float m = fmaxf(max[h], ceilf(cuda::warp_max<4>(most) * c));
      const float shift = m == -__builtin_inff() ? 0.f : -m;
      scale[h] = power(max[h], m);
      max[h] = m;
      sum[2 * h] *= scale[h];
      sum[2 * h + 1] *= scale[h];
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
        const float* pair = scores[n] + 2 * h;
        weights[n / 2][n % 2 * 2 + h] = cuda::pack_bf16(cuda::ptx::exp2_approx(fmaf(pair[0], c, shift)),
                                                        cuda::ptx::exp2_approx(fmaf(pair[1], c, shift)));
      }
    }
#pragma unroll
    for (int k = 0; k < kKeyTile / 16; ++k) cuda::ptx::mma_bf16(sum, weights[k], kOnes, kOnes);
  }

  // At the end of a piece: what merges its acc into that of the pieces before.
  __device__ __forceinline__ Merge end_piece(int h, bool first) {
    const MaxSum piece{max[h], sum[2 * h]};
    if (!first) return merge(merged[h], piece);
    merged[h] = piece;
    return {0, 1};
  }

  static constexpr uint32_t kOnes = 0x3f803f80u;  // two ones
};

}  // namespace weir::mma
