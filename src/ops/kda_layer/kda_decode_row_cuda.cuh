// What a row brings to the decode kernel: its inputs through convolution, norm and gate, and the journal rows it reads.
#pragma once

#include "ops/kda_layer/kda_cuda.cuh"

namespace weir::kda {

constexpr int kDecodeWarps = 8;
constexpr int kOperandPitch = 144, kCommitPitch = 136, kUpdatePitch = 24;  // of rows, without bank conflicts

template <bool kBounded>
struct DecodeShared;
template <>
struct DecodeShared<true> {
  alignas(128) uint4 high[kDecodeWarps][8][32];          // hi(S), then that of the new anchor
  alignas(16) uint16_t keys[kChunk + 1][kOperandPitch];  // kn; the row's own comes last
  alignas(16) uint16_t commit[kChunk][kCommitPitch];     // kd, in the order of places
  alignas(16) uint16_t updates[kDecodeWarps][kChunk][kUpdatePitch];
  alignas(16) uint16_t own[2][kOperandPitch];  // kt, qt
  alignas(16) float decay[kDim];               // exp(G_15)
  alignas(16) float pairs[kChunk];             // Lb
  alignas(16) uint16_t outputs[kChunk];        // A
  float squares[kDecodeWarps];
  uint64_t fetched;  // hi(S)
};
template <>
struct DecodeShared<false> : DecodeShared<true> {
  alignas(16) uint16_t pair_rows[8][kOperandPitch];  // rows 2 b, 2 b + 1: k, q relative to the block of 2^b rows
  alignas(16) uint16_t plain[2][kOperandPitch];      // k, q
  alignas(16) float journal_decays[kChunk][kDim];    // G of earlier rows
  alignas(16) float own_decay[kDim];
};

// The row's place, the same for all threads of a block.
struct DecodeRow {
  int row;       // in its chunk
  int earlier;   // journal rows to read: those of its chunk, or all of the chunk before when it makes the anchor
  bool commits;  // makes the anchor of its chunk
  Page now, old;
  Anchor base, next;  // what it starts from; what it writes
};

__device__ __forceinline__ DecodeRow decode_row(const Head& head) {
  const int64_t position = head.span.first_position, chunk = position / kChunk;
  DecodeRow r;
  r.row = static_cast<int>(position % kChunk);
  r.commits = head.span.anchor_position < chunk * kChunk;
  r.earlier = r.commits ? kChunk : r.row;
  r.now = head.page(chunk);
  r.old = r.commits ? head.page(chunk - 1) : r.now;
  r.base = head.anchor(head.span.anchor);
  if (r.commits) r.next = head.written(chunk * kChunk);
  return r;
}

// Four channels of a stored input, `back` rows before the span.
__device__ __forceinline__ uint2 earlier_input(const Head& head, int which, int back, int lane) {
  const uint16_t* x = head.stored_input(which, head.span.first_position - back);
  return x == nullptr ? uint2{0, 0} : *reinterpret_cast<const uint2*>(x + 4 * lane);
}

// Warps 0 and 1: q and k of the row, convolved, of unit length (q scaled), channels 4 lane to 4 lane + 3.
__device__ __forceinline__ float4 decode_key(const Head& head, const DecodeRow& r, int which, int lane) {
  const Layer& layer = head.layer;
  const uint2 x = reinterpret_cast<const uint2*>(head.row(layer.inputs[which], head.span.first_position))[lane];
  const float4* taps = reinterpret_cast<const float4*>(layer.conv[which]) + head.head * kDim + 4 * lane;
  const float4 w[4] = {taps[0], taps[1], taps[2], taps[3]};
  const uint2 x3 = earlier_input(head, which, 3, lane), x2 = earlier_input(head, which, 2, lane),
              x1 = earlier_input(head, which, 1, lane);
  if (r.now) *reinterpret_cast<uint2*>(r.now.inputs(which, r.row) + 4 * lane) = x;
  const float4 s = convolve4(w, x3, x2, x1, x);
  const float factor = ptx::inverse_root_approx(cuda::warp_sum(square_sum(s)) + layer.l2_eps);
  return which == kQ ? s * factor * kQueryScale : s * factor;
}

// Every warp: v of its columns, column g + 8 (c % 2) in lane 4 g + c.
__device__ __forceinline__ float decode_value(const Head& head, const DecodeRow& r, int column, bool store) {
  const Layer& layer = head.layer;
  const uint16_t x = head.row(layer.inputs[kV], head.span.first_position)[column];
  const float4 taps = reinterpret_cast<const float4*>(layer.conv[kV])[head.head * kDim + column];
  float earlier[3];
#pragma unroll
  for (int back = 1; back <= 3; ++back) {
    const uint16_t* stored = head.stored_input(kV, head.span.first_position - back);
    earlier[back - 1] = stored == nullptr ? 0.f : low_bf16(stored[column]);
  }
  if (store && r.now) r.now.inputs(kV, r.row)[column] = x;
  return cuda::round_bf16(convolve(taps, earlier[2], earlier[1], earlier[0], low_bf16(x)));
}

// Warps 0 (q) and 1 (k): the row's operands and journal entries.
template <bool kBounded>
__device__ __forceinline__ void decode_operands(DecodeShared<kBounded>& shared, const Head& head, const DecodeRow& r,
                                                int warp, int lane) {
  const Layer& layer = head.layer;
  const float4 f = unpack4(reinterpret_cast<const uint2*>(head.row(layer.f, head.span.first_position))[lane]);
  const float4 bias = reinterpret_cast<const float4*>(layer.dt_bias + head.head * kDim)[lane];
  float4 total = {0.f, 0.f, 0.f, 0.f};
  if (r.earlier > 0) total = reinterpret_cast<const float4*>(r.old.decays(r.earlier - 1))[lane];
  if (r.commits) {
    if (warp == 0) reinterpret_cast<float4*>(shared.decay)[lane] = fast_exp4(total);
    total = {0.f, 0.f, 0.f, 0.f};
  }
  const float4 x = decode_key(head, r, warp == 0 ? kQ : kK, lane);
  total = total + log_decay4<kBounded>(f, bias, layer.a[head.head], layer.lower_bound);
  const float4 e = fast_exp4(total);
  const uint2 plain = pack4(x);
  const uint2 scaled = pack4((kBounded ? x : unpack4(plain)) * e);
  reinterpret_cast<uint2*>(shared.own[warp == 0 ? 1 : 0])[lane] = scaled;
  if constexpr (!kBounded) {
    reinterpret_cast<uint2*>(shared.plain[warp == 0 ? 1 : 0])[lane] = plain;
    if (warp == 0) reinterpret_cast<float4*>(shared.own_decay)[lane] = total;
  }
  if (warp == 0) return;
  uint2 stored = plain;
  if constexpr (kBounded) {
    stored = pack4(x * fast_exp4({-total.x, -total.y, -total.z, -total.w}));
    reinterpret_cast<uint2*>(shared.keys[kChunk])[lane] = stored;
  }
  if (r.now) {
    reinterpret_cast<uint2*>(r.now.keys(r.row))[lane] = stored;
    reinterpret_cast<float4*>(r.now.decays(r.row))[lane] = total;
  }
}

// The journal rows that the row reads, into shared memory.
template <bool kBounded>
__device__ __forceinline__ void fetch_journal(DecodeShared<kBounded>& shared, const DecodeRow& r, int thread) {
  const int warp = thread / 32, lane = thread % 32, j = thread / 16, part = thread % 16;
  if (j < r.earlier) ptx::copy_async16(ptx::shared_address(&shared.keys[j][part * 8]), r.old.keys(j) + part * 8);
  const int row = lane / 2, column = lane % 2 * 8;  // zeros beyond
  const bool live = row < r.earlier;
  ptx::copy_async16(ptx::shared_address(&shared.updates[warp][row][column]),
                    live ? r.old.updates(row) + warp * 16 + column : nullptr, live);
  if constexpr (!kBounded) {
    for (int i = thread; i < r.earlier * 32; i += kDecodeWarps * 32) {
      ptx::copy_async16(ptx::shared_address(&shared.journal_decays[i / 32][i % 32 * 4]),
                        r.old.decays(i / 32) + i % 32 * 4);
    }
  }
  ptx::commit_copies();
}

// The new anchor's window: the last inputs of the chunk before.
__device__ __forceinline__ void write_window(const DecodeRow& r, int thread) {
  constexpr int kParts = kRowBytes / 16;
  if (!r.next || thread >= 3 * kHistory * kParts) return;
  const int which = thread / (kHistory * kParts), row = thread / kParts % kHistory, part = thread % kParts;
  reinterpret_cast<uint4*>(r.next.window(which, row))[part] =
      reinterpret_cast<const uint4*>(r.old.inputs(which, kChunk - kHistory + row))[part];
}

}  // namespace weir::kda
