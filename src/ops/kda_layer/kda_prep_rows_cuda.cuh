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
      : at_(reinterpret_cast<const uint2*>(chunk.head.row(rows, chunk.start)) + lane), stride_(rows.stride / 4) {}
  __device__ uint2 operator[](int row) const { return ptx::load_stream(at_ + row * stride_); }

 private:
  const uint2* at_;
  int64_t stride_;
};

// One input's live rows through the convolution, in order.
class Convolution {
 public:
  __device__ Convolution(const PrepChunk& chunk, int which, int lane)
      : chunk_(chunk), rows_(chunk, chunk.head.layer.inputs[which], lane), which_(which), lane_(lane) {
    const float4* taps =
        reinterpret_cast<const float4*>(chunk.head.layer.conv[which]) + chunk.head.head * kDim + 4 * lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) taps_[i] = taps[i];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const int row = chunk.first - kHistory + i;
      const int64_t position = chunk.start + row;
      if (position >= chunk.head.span.first_position) {
        earlier_[i] = rows_[row];
      } else {
        const uint16_t* stored = chunk.head.stored_input(which, position);
        earlier_[i] = stored == nullptr ? uint2{0, 0} : *reinterpret_cast<const uint2*>(stored + 4 * lane);
      }
    }
  }

  __device__ uint2 input(int row) const { return chunk_.live(row) ? rows_[row] : uint2{0, 0}; }

  // The result for a row whose input is x; something finite where not live.
  __device__ float4 next(int row, uint2 x) {
    if (chunk_.page && chunk_.live(row)) *reinterpret_cast<uint2*>(chunk_.page.inputs(which_, row) + 4 * lane_) = x;
    const float4 s = convolve4(taps_, earlier_[0], earlier_[1], earlier_[2], x);
    if (row >= chunk_.first) earlier_[0] = earlier_[1], earlier_[1] = earlier_[2], earlier_[2] = x;
    return s;
  }

  // After the last row of a full chunk: the window of the anchor behind it.
  __device__ void finish() const {
    if (!chunk_.next) return;
#pragma unroll
    for (int i = 0; i < kHistory; ++i)
      *reinterpret_cast<uint2*>(chunk_.next.window(which_, i) + 4 * lane_) = earlier_[i];
  }

 private:
  const PrepChunk& chunk_;
  const ChunkRows rows_;
  int which_, lane_;
  float4 taps_[4];
  uint2 earlier_[kHistory];  // oldest first
};

__device__ __forceinline__ void prep_values(const PrepChunk& chunk, std::byte* block, int lane) {
  Convolution convolution(chunk, kV, lane);
#pragma unroll
  for (int first = 0; first < kChunk; first += 8) {
    uint2 x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = convolution.input(first + i);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      reinterpret_cast<uint2*>(block + kBlockValues + (first + i) * kValuePitch)[lane] =
          pack4(convolution.next(first + i, x[i]));
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
// 0 where not live, G is the sum so far.
template <bool kBounded, class Take>
__device__ __forceinline__ float4 prep_rows(const PrepChunk& chunk, int lane, const Take& take) {
  const Layer& layer = chunk.head.layer;
  Convolution queries(chunk, kQ, lane), keys(chunk, kK, lane);
  const ChunkRows decay_rows(chunk, layer.f, lane);
  const float4 bias = reinterpret_cast<const float4*>(layer.dt_bias + chunk.head.head * kDim)[lane];
  const float a = layer.a[chunk.head.head];
  float4 total = {0.f, 0.f, 0.f, 0.f};
  if (kBounded && chunk.first > 0) total = reinterpret_cast<const float4*>(chunk.page.decays(chunk.first - 1))[lane];
#pragma unroll
  for (int start = 0; start < kChunk; start += 4) {
    uint2 xq[4], xk[4], f[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      xq[i] = queries.input(start + i);
      xk[i] = keys.input(start + i);
      f[i] = chunk.live(start + i) ? decay_rows[start + i] : uint2{0, 0};
    }
    float4 q[4], k[4];
    float sums[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q[i] = queries.next(start + i, xq[i]);
      k[i] = keys.next(start + i, xk[i]);
      sums[2 * i] = square_sum(q[i]);
      sums[2 * i + 1] = square_sum(k[i]);
    }
    const float factor = ptx::inverse_root_approx(fold8(sums, lane) + layer.l2_eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = start + i;
      const bool live = chunk.live(row);
      const float of_q = __shfl_sync(kAllLanes, factor, fold8_lane(2 * i)),
                  of_k = __shfl_sync(kAllLanes, factor, fold8_lane(2 * i + 1));
      const float4 g = log_decay4<kBounded>(unpack4(f[i]), bias, a, layer.lower_bound);
      if (live) total = total + g;
      if (!kBounded && row < chunk.first) total = reinterpret_cast<const float4*>(chunk.page.decays(row))[lane];
      take(row, live, q[i] * (live ? of_q : 0.f) * kQueryScale, k[i] * (live ? of_k : 0.f), total);
      if (live && chunk.page) reinterpret_cast<float4*>(chunk.page.decays(row))[lane] = total;
    }
  }
  queries.finish();
  keys.finish();
  return total;
}

}  // namespace weir::kda
