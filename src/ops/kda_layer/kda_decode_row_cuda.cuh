// What a row brings to the decode kernel: its place, its inputs through convolution, norm and gate, and the journal
// rows that it reads. What is older than the kernel before is fetched first, all at once, then the row's own numbers.
#pragma once

#include "ops/kda_layer/kda_decode_columns_cuda.cuh"

namespace weir::kda {

constexpr int kOperandPitch = 144;  // of rows, without bank conflicts

template <bool kBounded>
struct DecodeShared;
template <>
struct DecodeShared<true> : ColumnsShared {
  alignas(
      16) uint16_t keys[kChunk + 1][kOperandPitch];  // kn, the row's own last; of a commit kd in the order of places
  alignas(16) uint16_t own[2][kOperandPitch];        // kt, qt
  alignas(16) float decay[kDim];                     // exp(G_15)
};
template <>
struct DecodeShared<false> : DecodeShared<true> {    // keys: k relative to the block in which the row meets them
  alignas(16) uint16_t pair_rows[8][kOperandPitch];  // rows 2 b, 2 b + 1: k, q relative to the block of 2^b rows
  alignas(16) uint16_t plain[2][kOperandPitch];      // k, q
};

// The row's place, the same for all threads of a block.
struct DecodeRow {
  int row;       // in its chunk
  int earlier;   // journal rows to read: those of its chunk, or all of the chunk before when it makes the anchor
  bool commits;  // makes the anchor of its chunk
  Page now, old;
  Anchor base, next;  // what it starts from; what it writes

  __device__ DecodeRow(const Head& head, const Anchor& from) : base(from) {
    const int64_t position = head.span.first_position, chunk = position / kChunk;
    row = static_cast<int>(position % kChunk);
    commits = head.span.anchor_position < chunk * kChunk;
    earlier = commits ? kChunk : row;
    now = head.page(chunk);
    old = commits ? head.page(chunk - 1) : now;
    if (commits) next = head.written(chunk * kChunk);
  }
  // A convolution's input of an earlier row; null: before the sequence.
  __device__ const uint16_t* input(int which, int back) const {
    const int from = earlier - back;
    if (from >= 0) return old.inputs(which, from);
    return base ? base.window(which, from + kHistory) : nullptr;
  }
  // G of a journal row, channels 4 lane to 4 lane + 3.
  __device__ float4 decays(int j, int lane) const { return reinterpret_cast<const float4*>(old.decays(j))[lane]; }
};

// The convolution's weights and earlier inputs (oldest first), and what the decay needs, of channels 4 lane to
// 4 lane + 3.
template <bool kBounded>
struct KeyHistory {
  float4 taps[4] = {};
  uint2 inputs[kHistory] = {};
  float4 bias = {}, total = {};  // G of the row before
  float a = 0;
  float4 starts[kBounded ? 1 : 4] = {};  // unbounded: G before the blocks of 2^b rows that the row's bits open

  __device__ void fetch(const Head& head, const DecodeRow& r, int which, int lane) {
    const Layer& layer = head.layer;
    const float* conv = which == kQ ? layer.conv[kQ] : layer.conv[kK];  // an index would copy the arguments
#pragma unroll
    for (int i = 0; i < 4; ++i) taps[i] = reinterpret_cast<const float4*>(conv)[head.head * kDim + 4 * lane + i];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const uint16_t* x = r.input(which, kHistory - i);
      if (x != nullptr) inputs[i] = reinterpret_cast<const uint2*>(x)[lane];
    }
    bias = reinterpret_cast<const float4*>(layer.dt_bias + head.head * kDim)[lane];
    a = layer.a[head.head];
    if (r.row > 0) total = r.decays(r.row - 1, lane);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (!kBounded && (r.row >> b & 1) != 0) starts[kBounded ? 0 : b] = r.decays((r.row >> b << b) - 1, lane);
    }
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

  __device__ ValueHistory(const Head& head, const DecodeRow& r, int column) {
    taps = reinterpret_cast<const float4*>(head.layer.conv[kV])[head.head * kDim + column];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const uint16_t* x = r.input(kV, kHistory - i);
      inputs[i] = x == nullptr ? uint16_t{0} : x[column];
    }
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

// The block of 2^b rows that bit b of row t opens, b being the highest bit in which t and the earlier row j differ.
__device__ __forceinline__ int block_start(int t, int j) {
  const int b = 31 - __clz(t ^ j);
  return t >> b << b;
}

// Journal keys that enter products scaled by channels: warp w has the rows w, w + 4, ...
//   bounded, of a commit: kd = bf16(kn exp(G_15));  unbounded: bf16(k exp(R - G_j)), R being G_15 for a commit
template <bool kBounded>
class ScaledKeys {
 public:
  __device__ ScaledKeys(const DecodeRow& r, int warp, int lane)
      : commits_(r.commits), count_(kBounded && !r.commits ? 0 : r.earlier), warp_(warp), lane_(lane) {
    if (commits_) last_ = r.decays(kChunk - 1, lane);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int j = row(i);
      if (j >= count_) continue;
      keys_[i] = reinterpret_cast<const uint2*>(r.old.keys(j))[lane];
      if constexpr (!kBounded) {
        decays_[i] = r.decays(j, lane);
        starts_[i] = commits_ ? last_ : r.decays(block_start(r.row, j) - 1, lane);
      }
    }
  }
  __device__ void store(DecodeShared<kBounded>& shared) const {
    float4 last = {0.f, 0.f, 0.f, 0.f};
    if (commits_) last = fast_exp4(last_);
    if (commits_ && warp_ == 0) reinterpret_cast<float4*>(shared.decay)[lane_] = last;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int j = row(i);
      if (j >= count_) continue;
      const uint2 x = pack4(unpack4(keys_[i]) * (kBounded ? last : fast_exp4(starts_[i] - decays_[i])));
      if (commits_) {
        store_places(shared.keys[j], lane_, x);
      } else {
        reinterpret_cast<uint2*>(shared.keys[j])[lane_] = x;
      }
    }
  }

 private:
  static constexpr int kRows = kChunk / kDecodeWarps;

  __device__ int row(int i) const { return warp_ + kDecodeWarps * i; }

  bool commits_;
  int count_, warp_, lane_;
  uint2 keys_[kRows];
  float4 decays_[kRows], starts_[kRows], last_;
};

}  // namespace weir::kda
