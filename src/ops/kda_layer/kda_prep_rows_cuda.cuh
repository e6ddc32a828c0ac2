// What prep does row by row: the inputs of a chunk of a head through convolution, norm and gate. A lane has the
// channels 4 lane to 4 lane + 3. Rows are loaded well ahead of their use, those of a warp's next chunk too.
#pragma once

#include "ops/kda_layer/kda_cuda.cuh"

namespace weir::kda {

// A chunk of a head of a span. Rows [first, end) are the span's; those before come from the journal.
struct PrepChunk {
  Head head;
  int64_t start;           // position of row 0
  int first, end, beyond;  // beyond: as end, but more than kChunk when the span goes on
  Page page;

  __device__ PrepChunk(const Head& h, int64_t chunk) : head(h), start(chunk * kChunk), page(h.page(chunk)) {
    const int64_t before = head.span.first_position - start;
    first = static_cast<int>(before < 0 ? 0 : before < kChunk ? before : kChunk);
    beyond = static_cast<int>(head.span.last_position() + 1 - start);
    end = min(beyond, kChunk);
  }
  __device__ bool live(int row) const { return row >= first && row < end; }
  // All rows are the span's, and none is stored.
  __device__ bool is_plain() const { return first == 0 && end == kChunk && !page; }
  __device__ int64_t batch_row(int row) const { return head.span.first_row + start + row - head.span.first_position; }
};

// Four rows of one buffer in registers, as a warp goes through chunks.
struct RowStream {
  uint2 x[4];

  // Rows [row, row + 4) of a chunk, as far as they are the span's; 0 beyond.
  __device__ void load(const PrepChunk& chunk, const Rows& rows, int row, int lane) {
    const uint2* at =
        reinterpret_cast<const uint2*>(rows.data + chunk.batch_row(row) * rows.stride + chunk.head.head * kDim) + lane;
    const int stride = static_cast<int>(rows.stride / 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool live = row + i >= chunk.first && row + i < chunk.beyond;
      x[i] = ptx::load_stream_if(live, at + i * stride);
    }
  }
};

// Inputs of a convolution before the next row, oldest first.
struct Earlier {
  uint2 x[kHistory];

  // Before the first live row of a chunk.
  __device__ void load(const PrepChunk& chunk, int which, int lane) {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const int row = chunk.first - kHistory + i;
      const uint16_t* from = chunk.start + row >= chunk.head.span.first_position
                                 ? chunk.head.row(chunk.head.layer.inputs[which], chunk.start + row)
                                 : chunk.head.stored_input(which, chunk.start + row);
      x[i] = from == nullptr ? uint2{0, 0} : reinterpret_cast<const uint2*>(from)[lane];
    }
  }
  // As the window of an anchor.
  __device__ void store(const Anchor& anchor, int which, int lane) const {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) reinterpret_cast<uint2*>(anchor.window(which, i))[lane] = x[i];
  }
};

// What a group of warps, which work on one head, need of it: lane l has the channels 4 l to 4 l + 3.
struct HeadWeights {
  float4 taps[2][4][32];  // of the convolutions of q and k: [channel % 4][lane]
  float4 bias[32];

  // By all of `threads`, between their barriers.
  __device__ void load(const Layer& layer, int head, int thread, int threads) {
    for (int which = 0; which < 2; ++which) {
      const float* conv = which == kQ ? layer.conv[kQ] : layer.conv[kK];
      for (int channel = thread; channel < kDim; channel += threads) {
        taps[which][channel % 4][channel / 4] = reinterpret_cast<const float4*>(conv)[head * kDim + channel];
      }
    }
    if (thread < 32) bias[thread] = reinterpret_cast<const float4*>(layer.dt_bias + head * kDim)[thread];
  }
};

// Four rows through a convolution; something finite where a row isn't live. kPlain: chunk.is_plain().
template <bool kPlain>
__device__ __forceinline__ void convolve_rows(float4* s, const PrepChunk& chunk, const uint2* x, Earlier& earlier,
                                              const HeadWeights& weights, int which, int first_row, int lane) {
  uint2* const e = earlier.x;
  const float4 taps[4] = {weights.taps[which][0][lane], weights.taps[which][1][lane], weights.taps[which][2][lane],
                          weights.taps[which][3][lane]};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + i;
    if (!kPlain && chunk.page && chunk.live(row)) {
      reinterpret_cast<uint2*>(chunk.page.inputs(which, row))[lane] = x[i];
    }
    s[i] = convolve4(taps, e[0], e[1], e[2], x[i]);
    if (kPlain || chunk.live(row)) e[0] = e[1], e[1] = e[2], e[2] = x[i];
  }
}

// Sums over the warp of eight or four values, in the order of cuda::warp_sum; value i ends in lanes fold_lane<8>(i) +
// x.
template <int kCount, int kDistance>
__device__ __forceinline__ void fold(float* v, int lane) {
  const bool upper = (lane & kDistance) != 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float give = upper ? v[i] : v[i + kCount], keep = upper ? v[i + kCount] : v[i];
    v[i] = keep + __shfl_xor_sync(kAllLanes, give, kDistance);
  }
}
__device__ __forceinline__ float fold8(float* v, int lane) {
  fold<4, 16>(v, lane);
  fold<2, 8>(v, lane);
  fold<1, 4>(v, lane);
  return cuda::warp_sum<4>(v[0]);
}
__device__ __forceinline__ float fold4(float* v, int lane) {
  fold<2, 16>(v, lane);
  fold<1, 8>(v, lane);
  return cuda::warp_sum<8>(v[0]);
}
template <int kCount>
__device__ constexpr int fold_lane(int i) {
  return 32 / kCount * i;
}

// What a warp keeps of a head while it goes through chunks of a span.
struct PrepStreams {
  const HeadWeights& weights;
  const float a;
  RowStream queries, keys, decays;
  Earlier earlier[2];

  __device__ PrepStreams(const Layer& layer, const HeadWeights& of, int head) : weights(of), a(layer.a[head]) {}

  // A first chunk.
  __device__ void begin(const PrepChunk& chunk, int lane) {
    load_keys(chunk, 0, lane);
    load_decays(chunk, 0, lane);
    earlier[kQ].load(chunk, kQ, lane);
    earlier[kK].load(chunk, kK, lane);
  }
  __device__ void load_keys(const PrepChunk& chunk, int row, int lane) {
    queries.load(chunk, chunk.head.layer.inputs[kQ], row, lane);
    keys.load(chunk, chunk.head.layer.inputs[kK], row, lane);
  }
  __device__ void load_decays(const PrepChunk& chunk, int row, int lane) {
    decays.load(chunk, chunk.head.layer.f, row, lane);
  }
};

// Rows through convolution, norm and gate: take(row, live, q, k, G) for every row of the chunk, ascending, and
// take.finish(row) after each four that begin with `row`; q and k are 0 where not live, G is the sum so far. At the end
// the streams are at the rows behind the chunk. The loop is not unrolled as a whole: a chunk would run through more
// code than the instruction cache holds.
template <bool kBounded, bool kPlain, class Take>
__device__ __forceinline__ float4 prep_rows(const PrepChunk& chunk, PrepStreams& streams, int lane, Take& take) {
  const Layer& layer = chunk.head.layer;
  float4 total = {0.f, 0.f, 0.f, 0.f};
  if (kBounded && chunk.first > 0) total = reinterpret_cast<const float4*>(chunk.page.decays(chunk.first - 1))[lane];
#pragma unroll 1
  for (int start = 0; start < kChunk; start += 4) {
    float4 q[4], k[4];
    convolve_rows<kPlain>(q, chunk, streams.queries.x, streams.earlier[kQ], streams.weights, kQ, start, lane);
    convolve_rows<kPlain>(k, chunk, streams.keys.x, streams.earlier[kK], streams.weights, kK, start, lane);
    streams.load_keys(chunk, start + 4, lane);
    float sums[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[2 * i] = square_sum(q[i]), sums[2 * i + 1] = square_sum(k[i]);
    const float factor = ptx::inverse_root_approx(fold8(sums, lane) + layer.l2_eps);
    const float4 bias = streams.weights.bias[lane];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = start + i;
      const bool live = kPlain || chunk.live(row);
      const float of_q = __shfl_sync(kAllLanes, factor, fold_lane<8>(2 * i)),
                  of_k = __shfl_sync(kAllLanes, factor, fold_lane<8>(2 * i + 1));
      if (live) total = total + log_decay4<kBounded>(unpack4(streams.decays.x[i]), bias, streams.a, layer.lower_bound);
      if (!kBounded && row < chunk.first) total = reinterpret_cast<const float4*>(chunk.page.decays(row))[lane];
      take(row, live, q[i] * (live ? of_q * kQueryScale : 0.f), k[i] * (live ? of_k : 0.f), total);
      if (!kPlain && live && chunk.page) reinterpret_cast<float4*>(chunk.page.decays(row))[lane] = total;
    }
    take.finish(start);
    streams.load_decays(chunk, start + 4, lane);
  }
  return total;
}

}  // namespace weir::kda
