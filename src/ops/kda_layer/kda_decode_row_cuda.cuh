// What a row brings to the decode kernel: its place, its inputs through convolution, norm and gate, and the journal
// rows that it reads. What is older than the kernel before is fetched first, all at once, then the row's own numbers.
#pragma once

#include "ops/kda_layer/kda_decode_columns_cuda.cuh"
#include "ops/kda_layer/kda_decode_place_cuda.cuh"

namespace weir::kda {

constexpr int kOperandPitch = 144;  // of rows, without bank conflicts

template <bool kBounded>
struct DecodeShared;
template <>
struct DecodeShared<true> : ColumnsShared {
  alignas(
      16) uint16_t keys[kChunk + 1][kOperandPitch];  // kn, the row's own last; of a commit kd in the order of places
  alignas(16) uint16_t own[2][kOperandPitch];        // kt, qt
  alignas(16) float decay[kDim];                     // 2^G_15
};
template <>
struct DecodeShared<false> : DecodeShared<true> {    // keys: k relative to the block in which the row meets them
  alignas(16) uint16_t pair_rows[8][kOperandPitch];  // rows 2 b, 2 b + 1: k, q relative to the block of 2^b rows
  alignas(16) uint16_t plain[2][kOperandPitch];      // k, q
};

// A head's state as a row finds it.
struct DecodeRow : DecodePlace {
  Page now, old;
  Anchor base, next;

  __device__ DecodeRow(const DecodePlace& place, int head) : DecodePlace(place) {
    base.data = at(place.base, head, kAnchorHeadBytes);
    next.data = at(place.next, head, kAnchorHeadBytes);
  }
  __device__ void find_pages(int head) {
    now.data = at(DecodePlace::now(), head, kPageHeadBytes);
    old = now;
    if (commits) old.data = at(DecodePlace::before(), head, kPageHeadBytes);
  }
  // Input i of the convolution before the row's, oldest first.
  template <class T>
  __device__ T input(int which, int i, int at) const {
    const int from = earlier - kHistory + i;
    const uint16_t *journal = old.inputs(which, from), *window = base.window(which, from + kHistory);
    return load_if<T>(from >= 0 || base, reinterpret_cast<const T*>(from >= 0 ? journal : window) + at);
  }
  // G of a journal row, channels 4 lane to 4 lane + 3.
  __device__ float4 decays(int j, int lane) const { return reinterpret_cast<const float4*>(old.decays(j))[lane]; }

 private:
  __device__ static std::byte* at(std::byte* heads, int head, int bytes) {
    return heads == nullptr ? nullptr : heads + int64_t{head} * bytes;
  }
};

// The convolution's weights and earlier inputs (oldest first), and what the decay needs, of channels 4 lane to
// 4 lane + 3.
struct KeyHistory {
  float4 taps[4] = {};
  uint2 inputs[kHistory] = {};
  float4 bias = {}, total = {};  // G of the row before
  float a = 0;

  __device__ void fetch(const Layer& layer, const DecodeRow& r, int head, int which, int lane) {
    const float* conv = which == kQ ? layer.conv[kQ] : layer.conv[kK];  // an index would copy the arguments
#pragma unroll
    for (int i = 0; i < 4; ++i) taps[i] = reinterpret_cast<const float4*>(conv)[head * kDim + 4 * lane + i];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) inputs[i] = r.input<uint2>(which, i, lane);
    bias = reinterpret_cast<const float4*>(layer.dt_bias + head * kDim)[lane];
    a = layer.a[head];
    total = load_if<float4>(r.row > 0, r.now.decays(r.row - 1) + 4 * lane);
  }
  __device__ void write_window(const Anchor& to, int which, int lane) const {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) reinterpret_cast<uint2*>(to.window(which, i))[lane] = inputs[i];
  }
};
// The same of a value column.
struct ValueHistory {
  float4 taps;
  uint16_t inputs[kHistory];

  __device__ ValueHistory(const Layer& layer, const DecodeRow& r, int head, int column) {
    taps = reinterpret_cast<const float4*>(layer.conv[kV])[head * kDim + column];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) inputs[i] = r.input<uint16_t>(kV, i, column);
  }
  __device__ void write_window(const Anchor& to, int column) const {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) to.window(kV, i)[column] = inputs[i];
  }
  __device__ float convolved(uint16_t x) const {
    return cuda::round_bf16(convolve(taps, low_bf16(inputs[0]), low_bf16(inputs[1]), low_bf16(inputs[2]), low_bf16(x)));
  }
};

// Channels 4 lane to 4 lane + 3 in the order of places: 4c .. 4c+3 in places 2c, 2c+1, 2c+8, 2c+9.
__device__ __forceinline__ void store_places(uint16_t* row, int lane, uint2 value) {
  uint32_t* const to = reinterpret_cast<uint32_t*>(row) + lane / 4 * 8 + lane % 4;
  to[0] = value.x;
  to[4] = value.y;
}

// Journal keys that enter products scaled by channels; every warp has four rows of them at most.
//   bounded, of a commit: kd = bf16(kn 2^G_15)
//   unbounded: bf16(k 2^(R - G_j)), R being 0 or G before the block of 2^b rows in which row t meets row j; of a
//   commit, kd. Bit b of t opens the block that begins at t >> b << b, and the 2^b rows before it meet t there.
template <bool kBounded>
class ScaledKeys {
 public:
  __device__ ScaledKeys(const DecodeRow& r, int warp, int lane) : commits_(r.commits), lane_(lane), row_(r.row) {
    const int t = row_;
    if (kBounded && !commits_) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows_[i] = warp + 4 * i;
      if (commits_) continue;
      // Of the 8 rows of bit 3 two each, of bit 2 one each, of bit 1 one for two warps, and the third has that of bit
      // 0.
      if (i == 2) rows_[i] = (t & 8) + warp;
      if (i == 3) rows_[i] = warp < 2 ? (t & 12) + warp : t & 14;
      const int bit = i < 2 ? 8 : i == 2 ? 4 : warp < 2 ? 2 : warp == 2 ? 1 : 0;
      if ((t & bit) == 0) rows_[i] = kNone;
    }
    if (commits_) starts_[0] = r.decays(kChunk - 1, lane);
    if constexpr (!kBounded) {
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        if (commits_) starts_[b] = starts_[0];
        if ((t >> b & 1) != 0) starts_[b] = r.decays((t >> b << b) - 1, lane);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!kBounded && rows_[i] == kNone) continue;
      keys_[i] = reinterpret_cast<const uint2*>(r.old.keys(rows_[i]))[lane];
      if constexpr (!kBounded) decays_[i] = r.decays(rows_[i], lane);
    }
  }
  // When there is time to wait for what the constructor loads; before the functions that follow.
  __device__ void settle() {
    if constexpr (!kBounded) {
      float4 last = starts_[0];  // G of the newest of the keys: of the lowest bit
#pragma unroll
      for (int b = 3; b > 0; --b) {
        if (!commits_ && (row_ & ((2 << b) - 1)) == 1 << b) last = starts_[b];
      }
      moderate_ = is_moderate(last);
      if (!moderate_ || commits_) return;
#pragma unroll
      for (int b = 0; b < 4; ++b) starts_[b] = {0.f, 0.f, 0.f, 0.f};
    }
  }
  // Unbounded: R of the rows that meet the row in the block that its bit b opens.
  __device__ float4 start(int b) const { return starts_[b]; }

  __device__ void store(DecodeShared<kBounded>& shared, int warp) const {
    if (kBounded && !commits_) return;
    const float4 end = exp2_4(starts_[0]);
    if (commits_ && warp == 0) reinterpret_cast<float4*>(shared.decay)[lane_] = end;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!kBounded && rows_[i] == kNone) continue;
      uint2 x = keys_[i];
      if constexpr (!kBounded) {
        const float4 start = i < 2 ? starts_[3] : i == 2 ? starts_[2] : warp < 2 ? starts_[1] : starts_[0];
        const bool to_zero = commits_ && moderate_;
        x = pack4(unpack4(x) * exp2_4((to_zero ? float4{0.f, 0.f, 0.f, 0.f} : start) - decays_[i]));
      }
      if (kBounded || (commits_ && moderate_)) x = pack4(unpack4(x) * end);
      if (kBounded || commits_) {
        store_places(shared.keys[rows_[i]], lane_, x);
      } else {
        reinterpret_cast<uint2*>(shared.keys[rows_[i]])[lane_] = x;
      }
    }
  }

 private:
  static constexpr int kNone = -1;

  bool commits_, moderate_ = false;
  int lane_, row_, rows_[4];
  uint2 keys_[4] = {};
  float4 decays_[kBounded ? 1 : 4] = {}, starts_[kBounded ? 1 : 4] = {};
};

}  // namespace weir::kda
