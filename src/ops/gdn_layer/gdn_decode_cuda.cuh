// Spans of one row: a block for each head of each. Two barriers: when the row's operands are there, and when the
// squares for the norm are. What is older than the kernel before is fetched first, all at once, then the row's own
// numbers.
#pragma once

#include "ops/gdn_layer/gdn_cuda.cuh"
#include "ops/kda_layer/kda_decode_columns_cuda.cuh"

namespace weir::gdn {

using kda::kDecodeThreads;

constexpr int kKeyPitch = 136;  // of rows, without bank conflicts

struct DecodeShared : kda::ColumnsShared {
  alignas(16) uint16_t keys[kChunk][kKeyPitch];  // of the journal
  alignas(16) uint16_t own[2][kKeyPitch];        // k, q
};

// The row's place, the same for all threads of a block.
struct DecodeRow {
  int head, key_head;
  int row;       // in its chunk
  bool commits;  // makes the anchor of its chunk
  int earlier;   // journal rows to read: those of its chunk, or all of the chunk before when it commits
  Page now, old;
  Anchor base, next;  // what it starts from; what it writes

  __device__ DecodeRow(const Sequence& of, int head_, const Anchor& from)
      : head(head_), key_head(of.layer.key_head(head_)), base(from) {
    const int64_t position = of.span.first_position, chunk = position / kChunk;
    row = static_cast<int>(position % kChunk);
    commits = of.span.anchor_position < chunk * kChunk;
    earlier = commits ? kChunk : row;
    now = of.page(chunk);
    old = commits ? of.page(chunk - 1) : now;
    if (commits) next = of.written(chunk * kChunk);
  }
  // A convolution's input of an earlier row; null: before the sequence.
  __device__ const uint16_t* input(Input which, int back) const {
    const int from = earlier - back, of_head = which == kV ? head : key_head;
    if (from >= 0) return old.inputs(which, of_head, from);
    return base ? base.window(which, of_head, from + kHistory) : nullptr;
  }
};

// The convolution's weights and earlier inputs, oldest first, of channels 4 lane to 4 lane + 3 of q or k.
struct KeyHistory {
  float4 taps[4] = {};
  uint2 inputs[kHistory] = {};

  __device__ void fetch(const Layer& layer, const DecodeRow& r, Input which, int lane) {
    const float4* from = reinterpret_cast<const float4*>(layer.conv) + layer.channel(which, r.key_head) + 4 * lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) taps[i] = from[i];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const uint16_t* x = r.input(which, kHistory - i);
      if (x != nullptr) inputs[i] = reinterpret_cast<const uint2*>(x)[lane];
    }
  }
  __device__ void write_window(const DecodeRow& r, Input which, int lane) const {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) reinterpret_cast<uint2*>(r.next.window(which, r.key_head, i))[lane] = inputs[i];
  }
};
// The same of a value column.
struct ValueHistory {
  float4 taps;
  uint16_t inputs[kHistory];

  __device__ ValueHistory(const Sequence& sequence, const DecodeRow& r, int column) {
    taps = sequence.taps(kV, r.head)[column];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const uint16_t* x = r.input(kV, kHistory - i);
      inputs[i] = x == nullptr ? uint16_t{0} : x[column];
    }
  }
  __device__ void write_window(const DecodeRow& r, int column) const {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) r.next.window(kV, r.head, i)[column] = inputs[i];
  }
  __device__ float convolved(uint16_t x) const {
    return cuda::round_bf16(
        kda::convolve(taps, low_bf16(inputs[0]), low_bf16(inputs[1]), low_bf16(inputs[2]), low_bf16(x)));
  }
};

// G of the rows whose factors a lane of place (g, c) needs.
struct JournalDecays {
  float before = 0;                 // of the row before
  float pairs[2] = {};              // rows g, g + 8
  float last = 0, commits[4] = {};  // 15; exp(G_15 - G) of rows 2 c, 2 c + 1, 2 c + 8, 2 c + 9

  __device__ JournalDecays(const DecodeRow& r, int g, int c) {
    if (r.commits) {
      const float* from = r.old.decays(r.head);
      last = from[kChunk - 1];
#pragma unroll
      for (int i = 0; i < 4; ++i) commits[i] = fast_exp(last - from[2 * c + i % 2 + i / 2 * 8]);
    } else if (r.row > 0) {
      const float* from = r.now.decays(r.head);
      before = from[r.row - 1];
#pragma unroll
      for (int i = 0; i < 2; ++i) pairs[i] = g + 8 * i < r.row ? from[g + 8 * i] : 0.f;
    }
  }
};

// Warps 0 (q) and 1 (k): the row's operands and journal entries.
__device__ __forceinline__ void write_operands(DecodeShared& shared, const Layer& layer, const DecodeRow& r,
                                               const KeyHistory& history, uint2 x, int warp, int lane) {
  float4 s = kda::convolve4(history.taps, history.inputs[0], history.inputs[1], history.inputs[2], x);
  s = s * ptx::inverse_root_approx(cuda::warp_sum(kda::square_sum(s)) + layer.l2_eps);
  const uint2 y = kda::pack4(warp == 0 ? s * kda::kQueryScale : s);
  reinterpret_cast<uint2*>(shared.own[warp == 0 ? 1 : 0])[lane] = y;
  if (!r.now || !layer.is_first(r.head)) return;
  reinterpret_cast<uint2*>(r.now.inputs(warp == 0 ? kQ : kK, r.key_head, r.row))[lane] = x;
  if (warp == 1) reinterpret_cast<uint2*>(r.now.keys(r.key_head, r.row))[lane] = y;
}

// The commit of a tile of columns: both planes in, both out; high becomes the new hi. u is scaled.
__device__ __forceinline__ void commit_columns(uint4 (*high)[32], const uint4* low_in, uint4* out, const uint32_t* u,
                                               const uint16_t (*keys)[kKeyPitch], float decay, int lane) {
#pragma unroll
  for (int first = 0; first < 8; first += 4) {
    uint4 low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = low_in != nullptr ? ptx::load_stream(low_in + (first + i) * 32) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = first + i;
      uint32_t b[4];
      ptx::load_matrix_x4_transposed(b, ptx::shared_address(&keys[lane % 16][16 * k + lane / 16 * 8]));
      const uint4 x = high[k][lane];
      float s[8];
      kda::join_planes(x.x, low[i].x, s[0], s[1]);
      kda::join_planes(x.y, low[i].y, s[2], s[3]);
      kda::join_planes(x.z, low[i].z, s[4], s[5]);
      kda::join_planes(x.w, low[i].w, s[6], s[7]);
#pragma unroll
      for (float& y : s) y *= decay;
      ptx::mma_bf16(s, u, b[0], b[1]);
      ptx::mma_bf16(s + 4, u, b[2], b[3]);
      const uint4 y = {kda::high_planes(s[0], s[1]), kda::high_planes(s[2], s[3]), kda::high_planes(s[4], s[5]),
                       kda::high_planes(s[6], s[7])};
      high[k][lane] = y;
      if (out == nullptr) continue;
      ptx::store_stream(out + k * 32, y);
      ptx::store_stream(out + kda::kPlane + k * 32, uint4{kda::low_planes(s[0], s[1]), kda::low_planes(s[2], s[3]),
                                                          kda::low_planes(s[4], s[5]), kda::low_planes(s[6], s[7])});
    }
  }
}

// Chains of products over the channels, interleaved: the plane's with k and q (columns in turn) for both tiles, and
// those of the journal's keys, the row's own in its place. Later keys may hold anything: their products are dropped.
struct Products {
  float anchor[2][4] = {}, pairs[4] = {};
};
__device__ __forceinline__ Products products(const DecodeShared& shared, int t, int warp, int lane) {
  const int j = lane % 16, half = lane / 16 * 8;
  const uint32_t keys = ptx::shared_address((j == t ? shared.own[0] : shared.keys[j]) + half),
                 own = ptx::shared_address(&shared.own[lane % 2][lane / 8 * 8]);
  Products d;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    uint32_t b[4];  // of two steps
    ptx::load_matrix_x4(b, own + 32 * k);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t rows[4];
      ptx::load_matrix_x4(rows, keys + 32 * (k + i));
      ptx::mma_bf16(d.pairs, rows, b[2 * i], b[2 * i + 1]);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint4 s = shared.high[2 * warp + tile][k + i][lane];
        const uint32_t a[4] = {s.x, s.y, s.z, s.w};
        ptx::mma_bf16(d.anchor[tile], a, b[2 * i], b[2 * i + 1]);
      }
    }
  }
  return d;
}

// Lb and A of the row; later rows count nothing.
__device__ __forceinline__ void store_pairs(kda::PairWeights& to, const float* d, const JournalDecays& decays,
                                            float total, int row, float beta, int lane) {
  if (lane % 4 != 0) return;
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int j = lane / 4 + 8 * upper;
    const float factor = j < row ? fast_exp(total - decays.pairs[upper]) : 1.f;
    to.updates[j] = j < row ? beta * (factor * d[2 * upper]) : 0.f;
    to.products[j] = j <= row ? factor * d[2 * upper + 1] : 0.f;
  }
}

__global__ void __launch_bounds__(kDecodeThreads, 5) decode(const StepView* step, Layer layer) {
  WEIR_DYNAMIC_SHARED(DecodeShared, memory);
  DecodeShared& shared = *memory;
  if (blockIdx.y >= step->spans.size() || step->spans[blockIdx.y].rows != 1) {
    ptx::wait_for_previous();  // so that the launch after this one follows that one too
    return;
  }
  const Sequence sequence{*step, step->spans[blockIdx.y], layer};
  const kda::Columns me(shared);
  const int warp = me.warp, lane = me.lane, column = me.column;

  // The state is older than the kernel before this one, the row may come from it.
  const int head = static_cast<int>(blockIdx.x);
  const Anchor base = sequence.anchor(sequence.span.anchor);
  const uint4* plane = base ? base.planes(head) : nullptr;
  me.fetch_plane(plane);
  const DecodeRow r(sequence, head, base);
  me.fetch_updates(r.old.updates(head, 0), r.earlier);
  me.fetch_inverse(r.old.inverse(head, 0), r.earlier);
  for (int j = me.thread / 16, part = me.thread % 16 * 8; j < r.earlier; j += kDecodeThreads / 16) {
    ptx::copy_async16(ptx::shared_address(&shared.keys[j][part]), r.old.keys(r.key_head, j) + part);
  }
  ptx::commit_copies();
  if (me.thread == 0 && base && r.commits) ptx::bulk_prefetch(plane + kda::kPlane, kPlaneBytes);
  const JournalDecays decays(r, me.g, me.c);
  const ValueHistory values(sequence, r, column);
  const float norm_weight = layer.norm_weight[column];
  const Input which = warp == 0 ? kQ : kK;
  KeyHistory keys;
  if (warp < 2) keys.fetch(layer, r, which, lane);
  ptx::wait_for_previous();
  ptx::let_next_start();

  const int64_t position = sequence.span.first_position, batch_row = sequence.span.first_row;
  uint2 key_input = {0, 0};
  if (warp < 2) key_input = reinterpret_cast<const uint2*>(sequence.input(which, r.key_head, position))[lane];
  const uint16_t x = sequence.input(kV, head, position)[column];
  const float gate = low_bf16(layer.gate.data[batch_row * layer.gate.stride + head * kDim + column]);
  const float beta = layer.beta(batch_row, head), total = decays.before + layer.log_decay(batch_row, head);
  if (warp < 2) write_operands(shared, layer, r, keys, key_input, warp, lane);
  const float value = values.convolved(x), scale = fast_exp(total);
  if (r.now) {
    r.now.inputs(kV, head, r.row)[column] = x;
    if (me.thread == 2 * 32) r.now.decays(head)[r.row] = total;
  }
  if (r.next) {
    values.write_window(r, column);
    if (warp < 2 && layer.is_first(head)) keys.write_window(r, which, lane);
  }
  ptx::wait_copies<0>();
  __syncthreads();
  me.wait_for_plane(plane);

  if (r.commits) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int number = 2 * warp + tile, at = number * kda::kPlaneColumns + lane;
      uint32_t own[4], updates[4];
      me.load_updates(own, tile);
      me.combine(updates, own, decays.commits);
      commit_columns(shared.high[number], base ? plane + kda::kPlane + at : nullptr,
                     r.next ? r.next.planes(head) + at : nullptr, updates, shared.keys, fast_exp(decays.last), lane);
    }
    me.clear_updates();
  }
  Products d = products(shared, r.row, warp, lane);
#pragma unroll
  for (int i = 0; i < 8; ++i) d.anchor[i / 4][i % 4] *= scale;
  store_pairs(shared.pairs[warp], d.pairs, decays, total, r.row, beta, lane);
  __syncwarp();
  me.invert(r.row, r.now ? r.now.inverse(head, r.row) : nullptr);
  const uint16_t update = static_cast<uint16_t>(pack_bf16(beta * (value - me.pick(d.anchor, 0)), 0.f));
  me.store_update(update, r.row);
  if (r.now) r.now.updates(head, r.row)[column] = update;
  const float factor = gate * fast_sigmoid(gate), normed = me.output(d.anchor, layer.norm_eps);
  layer.out[batch_row * layer.out_stride + head * kDim + column] =
      static_cast<uint16_t>(pack_bf16(normed * norm_weight * factor, 0.f));
}

}  // namespace weir::gdn
