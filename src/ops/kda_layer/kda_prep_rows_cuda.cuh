// What prep does row by row: the inputs of a chunk of a head through convolution, norm and gate. A lane has the
// channels 4 lane to 4 lane + 3.
#pragma once

#include "ops/kda_layer/kda_cuda.cuh"

namespace weir::kda {

// A chunk of a head of a span. Rows [first, end) are the span's; those before come from the journal.
struct PrepChunk {
  Head head;
  int64_t start;  // position of row 0
  int first, end;
  Page page;
  Anchor next;  // the anchor after the chunk, when this step writes it

  __device__ PrepChunk(const Head& h, int64_t chunk) : head(h), start(chunk * kChunk), page(h.page(chunk)) {
    const int64_t before = head.span.first_position - start, after = head.span.last_position() + 1 - start;
    first = static_cast<int>(before < 0 ? 0 : before < kChunk ? before : kChunk);
    end = static_cast<int>(after < kChunk ? after : kChunk);
    next = head.written(start + kChunk);
  }
  __device__ bool live(int row) const { return row >= first && row < end; }
};

// The lane's channels of one buffer's rows in a chunk.
class ChunkRows {
 public:
  __device__ ChunkRows(const PrepChunk& chunk, const Rows& rows, int lane)
      : chunk_(chunk),
        at_(reinterpret_cast<const uint2*>(chunk.head.row(rows, chunk.start)) + lane),
        stride_(static_cast<int>(rows.stride / 4)) {}
  // Of a row that is the span's.
  __device__ uint2 operator[](int row) const { return ptx::load_stream(at_ + row * stride_); }
  // 0 where a row isn't.
  __device__ uint2 live(int row) const { return chunk_.live(row) ? (*this)[row] : uint2{0, 0}; }

 private:
  const PrepChunk& chunk_;
  const uint2* at_;
  int stride_;
};

// Inputs of the convolution before the first live row, oldest first.
struct Earlier {
  uint2 x[kHistory];

  __device__ Earlier(const PrepChunk& chunk, const ChunkRows& rows, int which, int lane) {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const int row = chunk.first - kHistory + i;
      const int64_t position = chunk.start + row;
      if (position >= chunk.head.span.first_position) {
        x[i] = rows[row];
      } else {
        const uint16_t* stored = chunk.head.stored_input(which, position);
        x[i] = stored == nullptr ? uint2{0, 0} : *reinterpret_cast<const uint2*>(stored + 4 * lane);
      }
    }
  }
};

// One input's live rows through the convolution, in order.
class Convolution {
 public:
  __device__ Convolution(const PrepChunk& chunk, const Earlier& earlier, int which, int lane)
      : chunk_(chunk), earlier_(earlier), which_(which), lane_(lane) {
    const float4* taps =
        reinterpret_cast<const float4*>(chunk.head.layer.conv[which]) + chunk.head.head * kDim + 4 * lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) taps_[i] = taps[i];
  }

  // The result for a row whose input is x; something finite where not live.
  __device__ float4 next(int row, uint2 x) {
    if (chunk_.page && chunk_.live(row)) *reinterpret_cast<uint2*>(chunk_.page.inputs(which_, row) + 4 * lane_) = x;
    uint2* const e = earlier_.x;
    const float4 s = convolve4(taps_, e[0], e[1], e[2], x);
    if (row >= chunk_.first) e[0] = e[1], e[1] = e[2], e[2] = x;
    return s;
  }

  // After the last row of a full chunk: the window of the anchor behind it.
  __device__ void finish() const {
    if (!chunk_.next) return;
#pragma unroll
    for (int i = 0; i < kHistory; ++i)
      *reinterpret_cast<uint2*>(chunk_.next.window(which_, i) + 4 * lane_) = earlier_.x[i];
  }

 private:
  const PrepChunk& chunk_;
  Earlier earlier_;
  int which_, lane_;
  float4 taps_[4];
};

__device__ __forceinline__ void prep_values(const PrepChunk& chunk, std::byte* block, int lane) {
  constexpr int kAtOnce = 8;
  const ChunkRows rows(chunk, chunk.head.layer.inputs[kV], lane);
  Convolution convolution(chunk, Earlier(chunk, rows, kV, lane), kV, lane);
#pragma unroll 1
  for (int start = 0; start < kChunk; start += kAtOnce) {
    uint2 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = rows.live(start + i);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      reinterpret_cast<uint2*>(block + kBlockValues + (start + i) * kValuePitch)[lane] =
          pack4(convolution.next(start + i, x[i]));
    }
  }
  convolution.finish();
}

// Sums over the warp of eight values, in the order of cuda::warp_sum; value i ends in lane 16 i2 + 8 i1 + 4 i0 + x.
template <int kCount>
__device__ __forceinline__ void fold(float* v, int lane) {
  const bool upper = (lane & (4 * kCount)) != 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float give = upper ? v[i] : v[i + kCount], keep = upper ? v[i + kCount] : v[i];
    v[i] = keep + __shfl_xor_sync(kAllLanes, give, 4 * kCount);
  }
}
__device__ __forceinline__ float fold8(float* v, int lane) {
  fold<4>(v, lane);
  fold<2>(v, lane);
  fold<1>(v, lane);
  return cuda::warp_sum<4>(v[0]);
}
__device__ constexpr int fold8_lane(int i) { return 4 * i; }

// Rows through convolution, norm and gate: take(row, live, q, k, G) for every row of the chunk, ascending; q and k are
// 0 where not live, G is the sum so far. The loop is not unrolled as a whole: a chunk would run through more code than
// the instruction cache holds. Rows are loaded four ahead, and v is made while the first ones are under way.
template <bool kBounded, class Take>
__device__ __forceinline__ float4 prep_rows(const PrepChunk& chunk, std::byte* values, int lane, const Take& take) {
  constexpr int kAtOnce = 4;
  const Layer& layer = chunk.head.layer;
  const ChunkRows query_rows(chunk, layer.inputs[kQ], lane), key_rows(chunk, layer.inputs[kK], lane),
      decay_rows(chunk, layer.f, lane);
  uint2 xq[kAtOnce], xk[kAtOnce], xf[kAtOnce];
  const auto load = [](uint2* to, const ChunkRows& from, int start) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) to[i] = from.live(start + i);
  };
  load(xq, query_rows, 0);
  load(xk, key_rows, 0);
  load(xf, decay_rows, 0);
  const Earlier earlier_queries(chunk, query_rows, kQ, lane), earlier_keys(chunk, key_rows, kK, lane);
  prep_values(chunk, values, lane);
  Convolution queries(chunk, earlier_queries, kQ, lane), keys(chunk, earlier_keys, kK, lane);
  const float4 bias = reinterpret_cast<const float4*>(layer.dt_bias + chunk.head.head * kDim)[lane];
  const float a = layer.a[chunk.head.head];
  float4 total = {0.f, 0.f, 0.f, 0.f};
  if (kBounded && chunk.first > 0) total = reinterpret_cast<const float4*>(chunk.page.decays(chunk.first - 1))[lane];
#pragma unroll 1
  for (int start = 0; start < kChunk; start += kAtOnce) {
    float4 q[kAtOnce], k[kAtOnce];
    float sums[2 * kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      q[i] = queries.next(start + i, xq[i]);
      k[i] = keys.next(start + i, xk[i]);
      sums[2 * i] = square_sum(q[i]);
      sums[2 * i + 1] = square_sum(k[i]);
    }
    if (start + kAtOnce < kChunk) {
      load(xq, query_rows, start + kAtOnce);
      load(xk, key_rows, start + kAtOnce);
    }
    const float factor = ptx::inverse_root_approx(fold8(sums, lane) + layer.l2_eps);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = start + i;
      const bool live = chunk.live(row);
      const float of_q = __shfl_sync(kAllLanes, factor, fold8_lane(2 * i)),
                  of_k = __shfl_sync(kAllLanes, factor, fold8_lane(2 * i + 1));
      if (live) total = total + log_decay4<kBounded>(unpack4(xf[i]), bias, a, layer.lower_bound);
      if (!kBounded && row < chunk.first) total = reinterpret_cast<const float4*>(chunk.page.decays(row))[lane];
      take(row, live, q[i] * (live ? of_q : 0.f) * kQueryScale, k[i] * (live ? of_k : 0.f), total);
      if (live && chunk.page) reinterpret_cast<float4*>(chunk.page.decays(row))[lane] = total;
    }
    if (start + kAtOnce < kChunk) load(xf, decay_rows, start + kAtOnce);
  }
  queries.finish();
  keys.finish();
  return total;
}

}  // namespace weir::kda
