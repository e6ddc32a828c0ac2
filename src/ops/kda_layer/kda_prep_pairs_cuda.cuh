// What prep makes of a chunk's rows: operands in the order of the block (kda_layout.h), the couplings of rows and their
// inverse. A lane has the channels 4 lane to 4 lane + 3: step lane / 4, and there the places of quad lane lane % 4.
#pragma once

#include "ops/kda_layer/kda_prep_rows_cuda.cuh"
#include "ops/kda_layer/kda_spans_cuda.cuh"

namespace weir::kda {

constexpr int kOperandTile = 4096, kKeyTile = 2048;  // of [kt; qt], of kn

// Where a row's channels of this lane are in operand tiles that begin kTile bytes apart: two words.
struct OperandPlace {
  std::byte *low, *high;
};
template <int kTile>
__device__ __forceinline__ OperandPlace operand_place(std::byte* tiles, int row, int lane) {
  const uint32_t low = static_cast<uint32_t>(((lane / 4 % 4 * 2) ^ (row % 8)) << 4);
  std::byte* at = tiles + lane / 16 * kTile + row * 128 + lane % 4 * 4;
  return {at + low, at + (low ^ 16)};
}
template <int kTile>
__device__ __forceinline__ void store_operand(std::byte* tiles, int row, int lane, uint2 x) {
  const OperandPlace at = operand_place<kTile>(tiles, row, lane);
  *reinterpret_cast<uint32_t*>(at.low) = x.x;
  *reinterpret_cast<uint32_t*>(at.high) = x.y;
}

// The 16 x 16 products of the block's operands, [k; q] by rows, with the rows of `other` as columns. Accumulators of
// lane 4 g + c: [x][2 r + e] is row g + 8 r, column 8 x + 2 c + e.
struct PairSums {
  float keys[2][4] = {}, queries[2][4] = {};
};
template <int kOtherTile>
__device__ __forceinline__ void pair_chain(PairSums& sums, const std::byte* block, const std::byte* other, int lane) {
  const int row = lane % 16, column = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int tile = k / 4, chunk = k % 4 * 2;
    const uint32_t at =
        ptx::shared_address(block + tile * kOperandTile + row * 128 + (((chunk + lane / 16) ^ (row % 8)) << 4));
    uint32_t keys[4], queries[4], b[4];
    ptx::load_matrix_x4(keys, at);
    ptx::load_matrix_x4(queries, at + kChunk * 128);
    ptx::load_matrix_x4(b, ptx::shared_address(other + tile * kOtherTile + column * 128 +
                                               (((chunk + lane / 8 % 2) ^ (column % 8)) << 4)));
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      ptx::mma_bf16(sums.keys[x], keys, b[2 * x], b[2 * x + 1]);
      ptx::mma_bf16(sums.queries[x], queries, b[2 * x], b[2 * x + 1]);
    }
  }
}
// sums takes what other has where `of(row, column)` says so.
template <class Of>
__device__ __forceinline__ void select_pairs(PairSums& sums, const PairSums& other, int lane, const Of& of) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = lane / 4 + i % 4 / 2 * 8, column = 8 * (i / 4) + lane % 4 * 2 + i % 2;
    if (!of(row, column)) continue;
    sums.keys[i / 4][i % 4] = other.keys[i / 4][i % 4];
    sums.queries[i / 4][i % 4] = other.queries[i / 4][i % 4];
  }
}

// Lb and A of a chunk by rows, 0 where j is not earlier, or later.
struct Pairs {
  float updates[kChunk][kChunk], outputs[kChunk][kChunk];
};
// beta is of row `lane`. diagonal: of A, where that is not among the sums.
__device__ __forceinline__ void store_pairs(Pairs& pairs, const PairSums& sums, float beta, int lane,
                                            const float* diagonal = nullptr) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int x = 0; x < 2; ++x) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = g + 8 * r, j = 8 * x + 2 * c;
      const float scale = __shfl_sync(kAllLanes, beta, i);
      const float *key = sums.keys[x] + 2 * r, *query = sums.queries[x] + 2 * r;
      float2 outputs = {j <= i ? query[0] : 0.f, j + 1 <= i ? query[1] : 0.f};
      if (diagonal != nullptr && i == j) outputs.x = diagonal[i];
      if (diagonal != nullptr && i == j + 1) outputs.y = diagonal[i];
      *reinterpret_cast<float2*>(&pairs.updates[i][j]) = {j < i ? scale * key[0] : 0.f,
                                                          j + 1 < i ? scale * key[1] : 0.f};
      *reinterpret_cast<float2*>(&pairs.outputs[i][j]) = outputs;
    }
  }
  __syncwarp();
}

// T and A T from the pairs, rounded, as operands in core matrices. Each lane makes column lane % 16 of T; odd lanes'
// halves share the rows of A T. old(i): T's row of the journal where there is one, else null; keep(i): where it goes.
__device__ __forceinline__ float weighted_sum(const float* weights, const float* x, int count, float sign) {
  float sum = 0.f;
#pragma unroll
  for (int m = 0; m < count; m += 4) {
    const float4 w = *reinterpret_cast<const float4*>(weights + m);
    sum = fmaf(sign * w.x, x[m], sum);
    if (m + 1 < count) sum = fmaf(sign * w.y, x[m + 1], sum);
    if (m + 2 < count) sum = fmaf(sign * w.z, x[m + 2], sum);
    if (m + 3 < count) sum = fmaf(sign * w.w, x[m + 3], sum);
  }
  return sum;
}
template <class Old, class Keep>
__device__ __forceinline__ void invert_pairs(const Pairs& pairs, std::byte* inverse, std::byte* outputs, int lane,
                                             const Old& old, const Keep& keep) {
  const int j = lane % kChunk, half = lane / kChunk;
  float t[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float sum = weighted_sum(pairs.updates[i], t, i, -1.f);
    t[i] = i == j ? 1.f : sum;
    if (const float* row = old(i)) t[i] = row[j];
    if (float* row = keep(i); row != nullptr && half == 0) row[j] = t[i];
  }
#pragma unroll
  for (int pair = 0; pair < kChunk / 2; ++pair) {
    const int i = 2 * pair + half, at = i / 8 * 256 + j / 8 * 128 + i % 8 * 16 + j % 8 * 2;
    const float own = half == 0 ? t[2 * pair] : t[2 * pair + 1];
    const uint32_t both = pack_bf16(own, weighted_sum(pairs.outputs[i], t, 2 * pair + 2, 1.f));
    *reinterpret_cast<uint16_t*>(inverse + at) = static_cast<uint16_t>(both);
    *reinterpret_cast<uint16_t*>(outputs + at) = static_cast<uint16_t>(both >> 16);
  }
}

// A chunk's block as a warp makes it. First kn stands where kd transposed will be, then, for a while, the pairs; behind
// beta is room for A's diagonal (unbounded).
struct PrepBlock {
  std::byte data[kBlockBytes];

  __device__ float* betas() { return reinterpret_cast<float*>(data + kBlockBeta); }
  __device__ float* diagonal() { return betas() + kChunk; }
  __device__ std::byte* keys() { return data + kBlockCommit; }
  __device__ Pairs& pairs() { return *reinterpret_cast<Pairs*>(data + kBlockCommit); }
};
static_assert(sizeof(Pairs) <= kBlockInverse - kBlockCommit && 2 * kChunk * 4 <= kBlockBytes - kBlockBeta);

template <bool kBounded, bool kPlain>
__device__ __forceinline__ void prep_pairs(const PrepChunk& chunk, PrepBlock& block, const PairSums& sums,
                                           float beta_logit, int lane) {
  const float beta = lane < kChunk && chunk.live(lane) ? fast_sigmoid(beta_logit) : 0.f;
  if (lane < kChunk) block.betas()[lane] = beta;
  store_pairs(block.pairs(), sums, beta, lane, kBounded ? nullptr : block.diagonal());
  invert_pairs(
      block.pairs(), block.data + kBlockInverse, block.data + kBlockOutput, lane,
      [&](int i) -> const float* { return !kPlain && i < chunk.first ? chunk.page.inverse(i) : nullptr; },
      [&](int i) -> float* { return !kPlain && chunk.page && chunk.live(i) ? chunk.page.inverse(i) : nullptr; });
  __syncwarp();
}

// kn, transposed, to become kd = bf16(kn 2^G_15). Lane 4 g + c: place g of each half step, rows 2 c, 2 c + 1 and 8
// further on.
class CommitKeys {
 public:
  __device__ __forceinline__ CommitKeys(PrepBlock& block, int lane) : block_(block), lane_(lane) {
    const int row = lane % 16;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      ptx::load_matrix_x4_transposed(kn_[k], ptx::shared_address(block.keys() + k / 4 * kKeyTile + row * 128 +
                                                                 (((k % 4 * 2 + lane / 16) ^ (row % 8)) << 4)));
    }
    __syncwarp();
  }
  __device__ __forceinline__ void store() const {
    const int g = lane_ / 4, c = lane_ % 4;
    const float* decay = reinterpret_cast<const float*>(block_.data + kBlockDecay) + g / 2 * 4 + g % 2;
    std::byte* const to = block_.data + kBlockCommit + g * 16 + c * 4;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float e = decay[16 * k + x / 2 * 2];
        *reinterpret_cast<uint32_t*>(to + (2 * k + x / 2) * 256 + x % 2 * 128) =
            pack_bf16(low_bf16(kn_[k][x]) * e, high_bf16(kn_[k][x]) * e);
      }
    }
  }

 private:
  PrepBlock& block_;
  int lane_;
  uint32_t kn_[8][4];
};

// Rows of a chunk as the block's operands.
template <bool kBounded, bool kPlain>
struct OperandRows {
  const PrepChunk& chunk;
  PrepBlock& block;
  int lane;
  float dots[4] = {};

  __device__ __forceinline__ void operator()(int row, bool live, float4 q, float4 k, float4 sum) {
    const float4 e = exp2_4(sum), inverse = exp2_4({-sum.x, -sum.y, -sum.z, -sum.w});
    uint2 key = pack4(kBounded ? k * inverse : k);
    if (!kPlain && live && chunk.page) reinterpret_cast<uint2*>(chunk.page.keys(row))[lane] = key;
    if (!kPlain && row < chunk.first) key = reinterpret_cast<const uint2*>(chunk.page.keys(row))[lane];
    if constexpr (!kBounded) {
      k = unpack4(key);
      q = unpack4(pack4(q));
      key = pack4(k * inverse);
      dots[row % 4] = dot4(q, k);
    }
    store_operand<kOperandTile>(block.data, row, lane, pack4(k * e));
    store_operand<kOperandTile>(block.data, kChunk + row, lane, pack4(q * e));
    store_operand<kKeyTile>(block.keys(), row, lane, key);
  }
  // Unbounded: A's diagonal.
  __device__ __forceinline__ void finish(int row) {
    if constexpr (!kBounded) {
      const float dot = fold4(dots, lane);
      if (lane % fold_lane<4>(1) == 0) block.diagonal()[row + lane / fold_lane<4>(1)] = dot;
    }
  }
};

}  // namespace weir::kda
