// Unbounded gates may decay so much within a chunk that 2^-G leaves the range of numbers: then rows are scaled relative
// to a row between those of a pair.
#pragma once

#include "ops/kda_layer/kda_prep_pairs_cuda.cuh"

namespace weir::kda {

// kd, by rows, transposed: channel 4 lane + x is row 16 step + 8 (x / 2) + 2 c + x % 2 of it.
__device__ __forceinline__ void store_commit(std::byte* block, const uint2* kd, int lane) {
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    uint32_t o[8];
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const uint2 even = kd[2 * m], odd = kd[2 * m + 1];
      o[m] = __byte_perm(x < 2 ? even.x : even.y, x < 2 ? odd.x : odd.y, x % 2 == 0 ? 0x5410 : 0x7632);
    }
    std::byte* at = block + kBlockCommit + (2 * (lane / 4) + x / 2) * 256 + (2 * (lane % 4) + x % 2) * 16;
    *reinterpret_cast<uint4*>(at) = {o[0], o[1], o[2], o[3]};
    *reinterpret_cast<uint4*>(at + 128) = {o[4], o[5], o[6], o[7]};
  }
}

// k, q and G of a chunk's rows.
struct PlainRows {
  const PrepChunk& chunk;
  int lane;
  uint2 q[kChunk], k[kChunk];
  float4 g[kChunk];

  __device__ void operator()(int row, bool, float4 query, float4 key, float4 sum) {
    q[row] = pack4(query);
    k[row] = row < chunk.first ? reinterpret_cast<const uint2*>(chunk.page.keys(row))[lane] : pack4(key);
    g[row] = sum;
  }
  __device__ void finish(int) {}
};

// A chunk whose operands OperandRows has left. Rows that are still moderate take their pairs from those; of the others
// there is one product of all rows for each level b: a row is scaled relative to the middle of its block of 2^(b+1)
// rows, and pairs that this middle separates are taken. Not inlined: it is rare, and needs many registers.
[[gnu::noinline]] __device__ inline void prep_steep(PrepChunk chunk, const HeadWeights& weights, PrepBlock& block,
                                                    float beta_logit, int lane) {
  PairSums sums;
  pair_chain<kKeyTile>(sums, block.data, block.keys(), lane);
  PlainRows rows{chunk, lane};
  PrepStreams streams(chunk.head.layer, weights, chunk.head.head);
  streams.begin(chunk, lane);
  const float4 total = prep_rows<false, false>(chunk, streams, lane, rows);
  int moderate = 1;
  while (moderate < kChunk && is_moderate(rows.g[moderate - 1])) ++moderate;
  const auto scaled = [&](const uint2* x, int row, float4 exponent) {
    return pack4(unpack4(x[row]) * exp2_4(exponent));
  };
#pragma unroll 1
  for (int b = 3; b >= 0; --b) {
    __syncwarp();
#pragma unroll 1
    for (int row = 0; row < kChunk; ++row) {
      const bool upper = ((row >> b) & 1) != 0;
      const float4 middle = rows.g[(((row >> b) | 1) << b) - 1], g = rows.g[row];
      const float4 exponent = upper ? g - middle : middle - g;
      store_operand<kOperandTile>(block.data, row, lane, scaled(rows.k, row, exponent));
      if (upper) store_operand<kOperandTile>(block.data, kChunk + row, lane, scaled(rows.q, row, exponent));
    }
    __syncwarp();
    PairSums level;
    pair_chain<kOperandTile>(level, block.data, block.data, lane);
    select_pairs(sums, level, lane,
                 [=](int row, int column) { return row >= moderate && row > column && (row ^ column) >> b == 1; });
  }
  prep_pairs<false, false>(chunk, block, sums, beta_logit, lane);
#pragma unroll 1
  for (int row = 0; row < kChunk; ++row) {
    store_operand<kOperandTile>(block.data, row, lane, scaled(rows.k, row, rows.g[row]));
    store_operand<kOperandTile>(block.data, kChunk + row, lane, scaled(rows.q, row, rows.g[row]));
    rows.k[row] = scaled(rows.k, row, total - rows.g[row]);
  }
  store_commit(block.data, rows.k, lane);
}

}  // namespace weir::kda
