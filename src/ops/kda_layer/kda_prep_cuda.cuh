// Spans of more than one row, first part: what needs no anchor, a warp for a run of chunks of a head. It leaves blocks
// (kda_layout.h) for the serial kernel, and the journal's keys, G and convolution inputs.
// A lane has the channels 4 lane to 4 lane + 3: step lane / 4, and there the places of quad lane lane % 4.
#pragma once

#include <type_traits>

#include "ops/kda_layer/kda_prep_rows_cuda.cuh"
#include "ops/kda_layer/kda_spans_cuda.cuh"

namespace weir::kda {

// Warps that a multiprocessor holds: in one block when others are to stay free, else in blocks of kSpreadWarps.
template <bool kBounded>
constexpr int kPrepWarps = kBounded ? 12 : 8;
constexpr int kSpreadWarps = 4;
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
template <int kTile>
__device__ __forceinline__ uint2 load_operand(std::byte* tiles, int row, int lane) {
  const OperandPlace at = operand_place<kTile>(tiles, row, lane);
  return {*reinterpret_cast<const uint32_t*>(at.low), *reinterpret_cast<const uint32_t*>(at.high)};
}

// The 16 x 16 products of the block's operands, [k; q] by rows, with the rows of `other` as columns. Accumulators of
// lane 4 g + c: [x][2 r + e] is row g + 8 r, column 8 x + 2 c + e.
struct PairSums {
  float keys[2][4] = {}, queries[2][4] = {};
};
template <int kOtherTile, bool kKeys = true>
__device__ __forceinline__ void pair_chain(PairSums& sums, const std::byte* block, const std::byte* other, int lane) {
  const int row = lane % 16, column = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int tile = k / 4, chunk = k % 4 * 2;
    const uint32_t at =
        ptx::shared_address(block + tile * kOperandTile + row * 128 + (((chunk + lane / 16) ^ (row % 8)) << 4));
    uint32_t keys[4], queries[4], b[4];
    if constexpr (kKeys) ptx::load_matrix_x4(keys, at);
    ptx::load_matrix_x4(queries, at + kChunk * 128);
    ptx::load_matrix_x4(b, ptx::shared_address(other + tile * kOtherTile + column * 128 +
                                               (((chunk + lane / 8 % 2) ^ (column % 8)) << 4)));
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      if constexpr (kKeys) ptx::mma_bf16(sums.keys[x], keys, b[2 * x], b[2 * x + 1]);
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
// beta is of row `lane`.
__device__ __forceinline__ void store_pairs(Pairs& pairs, const PairSums& sums, float beta, int lane) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int x = 0; x < 2; ++x) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = g + 8 * r, j = 8 * x + 2 * c;
      const float scale = __shfl_sync(kAllLanes, beta, i);
      const float *key = sums.keys[x] + 2 * r, *query = sums.queries[x] + 2 * r;
      *reinterpret_cast<float2*>(&pairs.updates[i][j]) = {j < i ? scale * key[0] : 0.f,
                                                          j + 1 < i ? scale * key[1] : 0.f};
      *reinterpret_cast<float2*>(&pairs.outputs[i][j]) = {j <= i ? query[0] : 0.f, j + 1 <= i ? query[1] : 0.f};
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
template <bool kPlain>
__device__ __forceinline__ void prep_pairs(const PrepChunk& chunk, std::byte* block, Pairs& pairs, const PairSums& sums,
                                           float beta_logit, int lane) {
  const float beta = lane < kChunk && chunk.live(lane) ? fast_sigmoid(beta_logit) : 0.f;
  if (lane < kChunk) reinterpret_cast<float*>(block + kBlockBeta)[lane] = beta;
  store_pairs(pairs, sums, beta, lane);
  invert_pairs(
      pairs, block + kBlockInverse, block + kBlockOutput, lane,
      [&](int i) -> const float* { return !kPlain && i < chunk.first ? chunk.page.inverse(i) : nullptr; },
      [&](int i) -> float* { return !kPlain && chunk.page && chunk.live(i) ? chunk.page.inverse(i) : nullptr; });
}

// Bounded: kd = bf16(kn 2^G_15), transposed, takes the place of kn. Lane 4 g + c: place g of each half step, rows
// 2 c, 2 c + 1 and 8 further on.
__device__ __forceinline__ void commit_bounded(std::byte* block, int lane) {
  std::byte* const commit = block + kBlockCommit;
  const int row = lane % 16, g = lane / 4, c = lane % 4;
  uint32_t kn[8][4];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    ptx::load_matrix_x4_transposed(kn[k], ptx::shared_address(commit + k / 4 * kKeyTile + row * 128 +
                                                              (((k % 4 * 2 + lane / 16) ^ (row % 8)) << 4)));
  }
  __syncwarp();
  const float* decay = reinterpret_cast<const float*>(block + kBlockDecay) + g / 2 * 4 + g % 2;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float e = decay[16 * k + x / 2 * 2];
      *reinterpret_cast<uint32_t*>(commit + (2 * k + x / 2) * 256 + x % 2 * 128 + g * 16 + c * 4) =
          pack_bf16(low_bf16(kn[k][x]) * e, high_bf16(kn[k][x]) * e);
    }
  }
}
// Unbounded: channel 4 lane + x is row 16 step + 8 (x / 2) + 2 c + x % 2 of it.
__device__ __forceinline__ void commit_unbounded(std::byte* block, const uint2* kd, int lane) {
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

// What the block needs of keys, queries and gates. Bounded: kn stands where kd transposed will be.
template <bool kPlain>
__device__ __forceinline__ void prep_bounded(const PrepChunk& chunk, PrepStreams& streams, std::byte* block,
                                             Pairs& pairs, float beta_logit, int lane) {
  std::byte* const other = block + kBlockCommit;
  const auto take = [&](int row, bool live, float4 q, float4 k, float4 sum) {
    uint2 x = pack4(k * exp2_4({-sum.x, -sum.y, -sum.z, -sum.w}));
    if (!kPlain && live && chunk.page) reinterpret_cast<uint2*>(chunk.page.keys(row))[lane] = x;
    if (!kPlain && row < chunk.first) x = reinterpret_cast<const uint2*>(chunk.page.keys(row))[lane];
    const float4 e = exp2_4(sum);
    store_operand<kOperandTile>(block, row, lane, pack4(k * e));
    store_operand<kOperandTile>(block, kChunk + row, lane, pack4(q * e));
    store_operand<kKeyTile>(other, row, lane, x);
  };
  const float4 total = prep_rows<true, kPlain>(chunk, streams, lane, take);
  reinterpret_cast<float4*>(block + kBlockDecay)[lane] = exp2_4(total);
  __syncwarp();
  PairSums sums;
  pair_chain<kKeyTile>(sums, block, other, lane);
  prep_pairs<kPlain>(chunk, block, pairs, sums, beta_logit, lane);
  commit_bounded(block, lane);
}

// Unbounded: one product of all rows for each level b; a row is scaled relative to the middle of its block of 2^(b+1)
// rows, and pairs that this middle separates are taken. decays: the lane's column of G.
template <bool kPlain>
__device__ __forceinline__ void prep_unbounded(const PrepChunk& chunk, PrepStreams& streams, std::byte* block,
                                               Pairs& pairs, float4* decays, float beta_logit, int lane) {
  const auto take = [&](int row, bool live, float4 query, float4 key, float4 sum) {
    uint2 k = pack4(key);
    if (!kPlain && live && chunk.page) reinterpret_cast<uint2*>(chunk.page.keys(row))[lane] = k;
    if (!kPlain && row < chunk.first) k = reinterpret_cast<const uint2*>(chunk.page.keys(row))[lane];
    store_operand<kOperandTile>(block, row, lane, k);
    store_operand<kOperandTile>(block, kChunk + row, lane, pack4(query));
    decays[row * 32] = sum;
  };
  const float4 total = prep_rows<false, kPlain>(chunk, streams, lane, take);
  uint2 q[kChunk], k[kChunk];
#pragma unroll
  for (int row = 0; row < kChunk; ++row) {
    k[row] = load_operand<kOperandTile>(block, row, lane);
    q[row] = load_operand<kOperandTile>(block, kChunk + row, lane);
  }
  __syncwarp();
  PairSums sums, own;
  pair_chain<kOperandTile, false>(own, block, block, lane);
  select_pairs(sums, own, lane, [](int row, int column) { return row == column; });
  __syncwarp();
#pragma unroll 1
  for (int b = 3; b >= 0; --b) {
#pragma unroll
    for (int row = 0; row < kChunk; ++row) {
      const bool upper = ((row >> b) & 1) != 0;
      const float4 middle = decays[(((row >> b) | 1) << b) * 32 - 32], g = decays[row * 32];
      const float4 e = exp2_4(upper ? g - middle : middle - g);
      store_operand<kOperandTile>(block, row, lane, pack4(unpack4(k[row]) * e));
      if (upper) store_operand<kOperandTile>(block, kChunk + row, lane, pack4(unpack4(q[row]) * e));
    }
    __syncwarp();
    PairSums level;
    pair_chain<kOperandTile>(level, block, block, lane);
    select_pairs(sums, level, lane, [b](int row, int column) { return row > column && (row ^ column) >> b == 1; });
    __syncwarp();
  }
  prep_pairs<kPlain>(chunk, block, pairs, sums, beta_logit, lane);
#pragma unroll
  for (int row = 0; row < kChunk; ++row) {
    const float4 g = decays[row * 32], e = exp2_4(g);
    store_operand<kOperandTile>(block, row, lane, pack4(unpack4(k[row]) * e));
    store_operand<kOperandTile>(block, kChunk + row, lane, pack4(unpack4(q[row]) * e));
    k[row] = pack4(unpack4(k[row]) * exp2_4(total - g));
  }
  reinterpret_cast<float4*>(block + kBlockDecay)[lane] = exp2_4(total);
  commit_unbounded(block, k, lane);
}

// A warp's shared memory; decays are the unbounded form's.
struct PrepWarpBounded {
  std::byte block[kBlockBytes];
  Pairs pairs;
};
struct PrepWarpUnbounded : PrepWarpBounded {
  float4 decays[kChunk][32];
};
template <bool kBounded>
using PrepWarp = std::conditional_t<kBounded, PrepWarpBounded, PrepWarpUnbounded>;
// A block's: what all warps share, then each warp's.
template <bool kBounded>
constexpr int64_t prep_shared_bytes(int warps) {
  return static_cast<int64_t>(sizeof(HeadWeights)) + warps * static_cast<int64_t>(sizeof(PrepWarp<kBounded>));
}

// Sends a chunk's block off, and says so when it has arrived.
class BlockSender {
 public:
  // By all lanes: the block before has left, and may be overwritten.
  __device__ void finish(int lane) {
    if (lane == 0 && flag_ != nullptr) {
      ptx::wait_bulk_stores<0>();
      ptx::fence_async_global();
      ptx::store_release(flag_, 1);
    }
    flag_ = nullptr;
    __syncwarp();
  }
  __device__ void send(const std::byte* block, std::byte* to, uint32_t* flag, int lane) {
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) {
      ptx::bulk_store(to, block, kBlockBytes);
      ptx::commit_bulk_stores();
    }
    flag_ = flag;
  }

 private:
  uint32_t* flag_ = nullptr;
};

template <bool kBounded, bool kPlain>
__device__ __forceinline__ void prep_chunk(const PrepChunk& chunk, PrepStreams& streams, PrepWarp<kBounded>& own,
                                           BlockSender& sender, int lane) {
  std::byte* const block = own.block;
  float beta_logit = 0.f;  // of row `lane`, for the end
  if (lane < kChunk && chunk.live(lane)) {
    beta_logit = chunk.head.layer.beta_logit(chunk.batch_row(lane), chunk.head.head);
  }
  sender.finish(lane);
  if constexpr (kBounded) {
    prep_bounded<kPlain>(chunk, streams, block, own.pairs, beta_logit, lane);
  } else {
    prep_unbounded<kPlain>(chunk, streams, block, own.pairs, &own.decays[0][lane], beta_logit, lane);
  }
}

// A turn of a block: for each of its warps a run of chunks of a head. Blocks that are neighbours have heads that are,
// and the same rows.
template <bool kBounded>
__global__ void __launch_bounds__(kPrepWarps<kBounded> * 32, 1)
    prep(const StepView* step, Layer layer, ChunkRange range, int run, Blocks blocks) {
  WEIR_DYNAMIC_SHARED(HeadWeights, weights);
  PrepWarp<kBounded>* const memory = reinterpret_cast<PrepWarp<kBounded>*>(weights + 1);
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32;
  const LongSpans spans(*step, reinterpret_cast<std::byte*>(memory + warps));
  ptx::wait_for_previous();
  ptx::let_next_start();  // not before: the serial kernel waits for blocks alone
  PrepWarp<kBounded>& own = memory[warp];
  BlockSender sender;
  const int end = min(range.end, spans.chunks()), runs = (end - range.first + run - 1) / run;
  const int turns = (runs + warps - 1) / warps * layer.heads;
  int loaded = -1;  // the head whose weights are
  for (int turn = static_cast<int>(blockIdx.x); turn < turns; turn += static_cast<int>(gridDim.x)) {
    const int head = turn % layer.heads;
    if (head != loaded) {
      __syncthreads();
      weights->load(layer, head);
      __syncthreads();
      loaded = head;
    }
    const int first = range.first + (turn / layer.heads * warps + warp) * run, last = min(first + run, end);
    PrepStreams streams(layer, *weights, head);
    bool goes_on = false;
    int64_t wanted = 0;  // where the next anchor is written
    for (int number = first; number < last; ++number) {
      const LongSpan& entry = spans.of(number);
      const SpanView& span = step->spans[static_cast<size_t>(entry.span)];
      PrepChunk chunk({*step, span, layer, head}, span.anchor_position / kChunk + number - entry.first_chunk);
      if (number + 1 == last) chunk.beyond = chunk.end;
      if (!goes_on) {
        streams.begin(chunk, lane);
        wanted = chunk.head.next_write(chunk.start + kChunk);
      }
      goes_on = chunk.beyond > kChunk;
      if (chunk.is_plain()) {
        prep_chunk<kBounded, true>(chunk, streams, own, sender, lane);
      } else {
        prep_chunk<kBounded, false>(chunk, streams, own, sender, lane);
      }
      sender.send(own.block, blocks.at(number - range.first, head), blocks.flag(number - range.first, head), lane);
      if (wanted != chunk.start + kChunk) continue;
      if (const Anchor next = chunk.head.written(wanted)) {
        streams.earlier[kQ].store(next, kQ, lane);
        streams.earlier[kK].store(next, kK, lane);
      }
      wanted = chunk.head.next_write(wanted + 1);
    }
  }
  sender.finish(lane);
}

}  // namespace weir::kda
