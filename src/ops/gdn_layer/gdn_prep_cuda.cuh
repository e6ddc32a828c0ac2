// Spans of more than one row, first part: what needs no anchor. A warp takes one key head of a chunk, whose keys and
// queries all heads that share them multiply with. It leaves blocks (gdn_layout.h) for the serial kernel, and the
// journal's keys, G and the inputs of their convolutions. A lane has the channels 4 lane to 4 lane + 3.
#pragma once

#include "ops/gdn_layer/gdn_cuda.cuh"
#include "ops/kda_layer/kda_prep_pairs_cuda.cuh"
#include "ops/kda_layer/kda_spans_cuda.cuh"

namespace weir::gdn {

constexpr int kPrepWarps = 12;  // one block fills a multiprocessor, so that others stay free for the serial kernel

// Blocks of a launch's chunks: those of keys, [chunk][key head], those of values, [chunk][head]; and of each chunk how
// many warps have done their part, since the serial kernel starts while this one runs. `done`: the count of a finished
// one.
struct Blocks {
  std::byte* keys;
  std::byte* values;
  uint32_t* counts;
  uint32_t done;

  __device__ std::byte* of_keys(const Layer& layer, int chunk, int key_head) const {
    return keys + (int64_t{chunk} * layer.key_heads + key_head) * kKeyBlockBytes;
  }
  __device__ std::byte* of_values(const Layer& layer, int chunk, int head) const {
    return values + (int64_t{chunk} * layer.heads + head) * kValueBlockBytes;
  }
};

// A chunk of a span. Rows [first, end) are the span's; those before come from the journal.
struct PrepChunk {
  const Sequence& sequence;
  int64_t start;  // position of row 0
  int first, end;
  Page page;
  Anchor next;  // the anchor after the chunk, when this step writes it

  __device__ PrepChunk(const Sequence& of, int64_t chunk) : sequence(of), start(chunk * kChunk), page(of.page(chunk)) {
    const int64_t before = of.span.first_position - start, after = of.span.last_position() + 1 - start;
    first = static_cast<int>(before < 0 ? 0 : before < kChunk ? before : kChunk);
    end = static_cast<int>(after < kChunk ? after : kChunk);
    next = of.written(start + kChunk);
  }
  __device__ bool live(int row) const { return row >= first && row < end; }
};

// One input's live rows through the convolution, in order.
class Convolution {
 public:
  __device__ Convolution(const PrepChunk& chunk, Input which, int head, int lane)
      : chunk_(chunk),
        rows_(reinterpret_cast<const uint2*>(chunk.sequence.input(which, head, chunk.start)) + lane),
        stride_(chunk.sequence.layer.qkv.stride / 4),
        which_(which),
        head_(head),
        lane_(lane) {
    const float4* taps = chunk.sequence.taps(which, head) + 4 * lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) taps_[i] = taps[i];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const int row = chunk.first - kHistory + i;
      if (chunk.start + row >= chunk.sequence.span.first_position) {
        earlier_[i] = load(row);
      } else {
        const uint16_t* stored = chunk.sequence.stored_input(which, head, chunk.start + row);
        earlier_[i] = stored == nullptr ? uint2{0, 0} : *reinterpret_cast<const uint2*>(stored + 4 * lane);
      }
    }
  }

  __device__ uint2 input(int row) const { return ptx::load_stream_if(chunk_.live(row), rows_ + row * stride_); }

  // The result for a row whose input is x; something finite where not live.
  __device__ float4 next(int row, uint2 x) {
    if (chunk_.page && chunk_.live(row)) {
      *reinterpret_cast<uint2*>(chunk_.page.inputs(which_, head_, row) + 4 * lane_) = x;
    }
    const float4 s = kda::convolve4(taps_, earlier_[0], earlier_[1], earlier_[2], x);
    if (row >= chunk_.first) earlier_[0] = earlier_[1], earlier_[1] = earlier_[2], earlier_[2] = x;
    return s;
  }

  // After the last row of a full chunk: the window of the anchor behind it.
  __device__ void finish() const {
    if (!chunk_.next) return;
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      *reinterpret_cast<uint2*>(chunk_.next.window(which_, head_, i) + 4 * lane_) = earlier_[i];
    }
  }

 private:
  __device__ uint2 load(int row) const { return ptx::load_stream(rows_ + row * stride_); }

  const PrepChunk& chunk_;
  const uint2* rows_;  // of the chunk
  int64_t stride_;
  Input which_;
  int head_, lane_;
  float4 taps_[4];
  uint2 earlier_[kHistory];  // oldest first
};

// Keys and queries of the chunk's rows into the tiles; 0 where a row has none. The loop over rows is not unrolled as a
// whole: each item would run through more code than the instruction cache holds. Rows are loaded ahead.
__device__ __forceinline__ void prep_rows(const PrepChunk& chunk, int key_head, std::byte* tiles, int lane) {
  const Layer& layer = chunk.sequence.layer;
  Convolution queries(chunk, kQ, key_head, lane), keys(chunk, kK, key_head, lane);
  constexpr int kAtOnce = 4;
  uint2 xq[kAtOnce], xk[kAtOnce];
  const auto load = [&](int start) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      xq[i] = queries.input(start + i);
      xk[i] = keys.input(start + i);
    }
  };
  load(0);
#pragma unroll 1
  for (int start = 0; start < kChunk; start += kAtOnce) {
    float4 q[kAtOnce], k[kAtOnce];
    float sums[2 * kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      q[i] = queries.next(start + i, xq[i]);
      k[i] = keys.next(start + i, xk[i]);
      sums[2 * i] = kda::square_sum(q[i]);
      sums[2 * i + 1] = kda::square_sum(k[i]);
    }
    if (start + kAtOnce < kChunk) load(start + kAtOnce);
    const float factor = ptx::inverse_root_approx(kda::fold8(sums, lane) + layer.l2_eps);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = start + i;
      const float of_q = __shfl_sync(kAllLanes, factor, kda::fold_lane<8>(2 * i)),
                  of_k = __shfl_sync(kAllLanes, factor, kda::fold_lane<8>(2 * i + 1));
      uint2 query = {0, 0}, key = {0, 0};
      if (chunk.live(row)) {
        query = kda::pack4(q[i] * (of_q * kda::kQueryScale));
        key = kda::pack4(k[i] * of_k);
        if (chunk.page) reinterpret_cast<uint2*>(chunk.page.keys(key_head, row))[lane] = key;
      } else if (row < chunk.first) {
        key = reinterpret_cast<const uint2*>(chunk.page.keys(key_head, row))[lane];
      }
      const uint32_t at = ptx::swizzle128(static_cast<uint32_t>(row * 128 + lane % 16 * 8));
      std::byte* const tile = tiles + lane / 16 * kKeyTile;
      *reinterpret_cast<uint2*>(tile + at) = key;
      *reinterpret_cast<uint2*>(tile + kQueries + at) = query;
    }
  }
  queries.finish();
  keys.finish();
}

// G of row `lane` of a head; all lanes take part. Rows that are not there keep the sum before them.
__device__ __forceinline__ float prep_decays(const PrepChunk& chunk, int head, int lane) {
  const Layer& layer = chunk.sequence.layer;
  float own = 0.f, total = 0.f, result = 0.f;
  if (chunk.live(lane)) own = layer.log_decay(chunk.sequence.row(chunk.start + lane), head);
  if (lane < chunk.first) own = chunk.page.decays(head)[lane];
#pragma unroll
  for (int row = 0; row < kChunk; ++row) {
    const float x = __shfl_sync(kAllLanes, own, row);
    total = row < chunk.first ? x : row < chunk.end ? total + x : total;
    if (row == lane) result = total;
  }
  if (chunk.page && chunk.live(lane)) chunk.page.decays(head)[lane] = result;
  return result;
}

// A warp's shared memory: keys and queries; the pairs of a head; T and A T, as the block has them.
struct PrepShared {
  std::byte tiles[kKeyBlockBytes];
  kda::Pairs pairs;
  uint4 operands[2 * kOutputs / 16];
};

// A head's couplings and factors from the products that it shares.
__device__ __forceinline__ void prep_head(PrepShared& shared, const PrepChunk& chunk, int head,
                                          const kda::PairSums& sums, std::byte* block, int lane) {
  const int g = lane / 4, c = lane % 4;
  float beta = 0.f;  // of row `lane`
  if (chunk.live(lane)) beta = chunk.sequence.layer.beta(chunk.sequence.row(chunk.start + lane), head);
  const float decay = prep_decays(chunk, head, lane), last = __shfl_sync(kAllLanes, decay, kChunk - 1);
  if (lane < kChunk) {
    reinterpret_cast<float*>(block + kScales)[lane] = fast_exp(decay);
    reinterpret_cast<float*>(block + kCommits)[lane] = fast_exp(last - decay);
    reinterpret_cast<float*>(block + kBetas)[lane] = beta;
    reinterpret_cast<float*>(block + kDecay)[lane] = fast_exp(last);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = g + 8 * r;
    const float g_i = __shfl_sync(kAllLanes, decay, i), beta_i = __shfl_sync(kAllLanes, beta, i);
#pragma unroll
    for (int x = 0; x < 2; ++x) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = 8 * x + 2 * c + e;
        const float factor = fast_exp(g_i - __shfl_sync(kAllLanes, decay, j));
        shared.pairs.updates[i][j] = j < i ? beta_i * (factor * sums.keys[x][2 * r + e]) : 0.f;
        shared.pairs.outputs[i][j] = j <= i ? factor * sums.queries[x][2 * r + e] : 0.f;
      }
    }
  }
  __syncwarp();
  std::byte* const operands = reinterpret_cast<std::byte*>(shared.operands);
  kda::invert_pairs(
      shared.pairs, operands, operands + kOutputs, lane,
      [&](int i) -> const float* { return i < chunk.first ? chunk.page.inverse(head, i) : nullptr; },
      [&](int i) -> float* { return chunk.page && chunk.live(i) ? chunk.page.inverse(head, i) : nullptr; });
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i) reinterpret_cast<uint4*>(block)[32 * i + lane] = shared.operands[32 * i + lane];
  __syncwarp();
}

__device__ __forceinline__ void prep_keys(const PrepChunk& chunk, int key_head, int number, const Blocks& blocks,
                                          PrepShared& shared, int lane) {
  const Layer& layer = chunk.sequence.layer;
  std::byte* const tiles = shared.tiles;
  prep_rows(chunk, key_head, tiles, lane);
  ptx::fence_async_shared();
  __syncwarp();
  if (lane == 0) {
    ptx::bulk_store(blocks.of_keys(layer, number, key_head), tiles, kKeyBlockBytes);
    ptx::commit_bulk_stores();
  }
  kda::PairSums sums;
  kda::pair_chain<kKeyTile>(sums, tiles, tiles, lane);
  for (int i = 0; i < layer.shared_by(); ++i) {
    const int head = layer.head_of(key_head, i);
    prep_head(shared, chunk, head, sums, blocks.of_values(layer, number, head), lane);
  }
}

// Tells the serial kernel that a warp's part of a chunk lies in memory.
__device__ __forceinline__ void finish_part(uint32_t* count, int lane) {
  ptx::wait_bulk_stores<0>();
  ptx::fence_async_global();
  __threadfence();
  __syncwarp();
  if (lane == 0) atomicAdd(count, 1u);
}

__global__ void __launch_bounds__(kPrepWarps * 32, 1)
    prep(const StepView* step, Layer layer, kda::ChunkRange range, Blocks blocks) {
  WEIR_DYNAMIC_SHARED(PrepShared, shared);
  ptx::let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const kda::LongSpans spans(*step, reinterpret_cast<std::byte*>(shared + kPrepWarps));
  const int items = (min(range.end, spans.chunks()) - range.first) * layer.key_heads;
  for (int item = static_cast<int>(blockIdx.x) * kPrepWarps + warp; item < items;
       item += static_cast<int>(gridDim.x) * kPrepWarps) {
    const int number = item / layer.key_heads, key_head = item % layer.key_heads;
    const kda::LongSpan& entry = spans.of(range.first + number);
    const Sequence sequence{*step, step->spans[static_cast<size_t>(entry.span)], layer};
    const PrepChunk chunk(sequence, sequence.span.anchor_position / kChunk + range.first + number - entry.first_chunk);
    prep_keys(chunk, key_head, number, blocks, shared[warp], lane);
    finish_part(blocks.counts + number, lane);
  }
}

}  // namespace weir::gdn
