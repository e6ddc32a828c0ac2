// Spans of one row: a block for each head of each. Two barriers: when the row's operands are there, and when the
// squares for the norm are. What is older than the kernel before is fetched first, all at once, then the row's own
// numbers.
#pragma once

#include "ops/gdn_layer/gdn_cuda.cuh"
#include "ops/kda_layer/kda_decode_columns_cuda.cuh"
#include "ops/kda_layer/kda_decode_place_cuda.cuh"

namespace weir::gdn {

using kda::kDecodeThreads;

constexpr int kKeyPitch = 136;  // of rows, without bank conflicts

struct DecodeShared : kda::ColumnsShared {
  alignas(16) uint16_t keys[kChunk][kKeyPitch];  // of the journal
  alignas(16) uint16_t own[2][kKeyPitch];        // k, q
  alignas(16) float decays[kChunk];              // G of the journal
};

// The state as a row of a head finds it.
struct DecodeRow : kda::DecodePlace {
  int head, key_head;
  Page now, old;
  Anchor base, next;

  __device__ DecodeRow(const DecodePlace& place, const Layer& layer, int head_)
      : DecodePlace(place),
        head(head_),
        key_head(layer.key_head(head_)),
        base{place.base, layer.heads},
        next{place.next, layer.heads} {}
  __device__ void find_pages(const Layer& layer) {
    now = {DecodePlace::now(), layer.key_heads};
    old = commits ? Page{DecodePlace::before(), layer.key_heads} : now;
  }
  // hi(S); null: zeros. lo lies behind it.
  __device__ const uint4* plane() const { return base ? base.planes(head) : nullptr; }
  // Input i of the convolution before the row's, oldest first.
  template <class T>
  __device__ T input(Input which, int i, int at) const {
    const int from = earlier - kHistory + i, of_head = which == kV ? head : key_head;
    const uint16_t *journal = old.inputs(which, of_head, from), *window = base.window(which, of_head, from + kHistory);
    return kda::load_if<T>(from >= 0 || base, reinterpret_cast<const T*>(from >= 0 ? journal : window) + at);
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
    for (int i = 0; i < kHistory; ++i) inputs[i] = r.input<uint2>(which, i, lane);
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

  __device__ ValueHistory(const Layer& layer, const DecodeRow& r, int column) {
    taps = reinterpret_cast<const float4*>(layer.conv)[layer.channel(kV, r.head) + column];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) inputs[i] = r.input<uint16_t>(kV, i, column);
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

// Warps 0 (q) and 1 (k): the row's operands and journal entries.
__device__ __forceinline__ void write_operands(DecodeShared& shared, const Layer& layer, const DecodeRow& r,
                                               const KeyHistory& history, uint2 x, int warp, int lane) {
  float4 s = kda::convolve4(history.taps, history.inputs[0], history.inputs[1], history.inputs[2], x);
  const float factor = ptx::inverse_root_approx(cuda::warp_sum(kda::square_sum(s)) + layer.l2_eps);
  const uint2 y = kda::pack4(s * (warp == 0 ? factor * kda::kQueryScale : factor));
  reinterpret_cast<uint2*>(shared.own[warp == 0 ? 1 : 0])[lane] = y;
  if (!r.now || !layer.is_first(r.head)) return;
  reinterpret_cast<uint2*>(r.now.inputs(warp == 0 ? kQ : kK, r.key_head, r.row))[lane] = x;
  if (warp == 1) reinterpret_cast<uint2*>(r.now.keys(r.key_head, r.row))[lane] = y;
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
__device__ __forceinline__ void store_pairs(kda::PairWeights& to, const float* d, const float* decays, float total,
                                            int row, float beta, int lane) {
  if (lane % 4 != 0) return;
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int j = lane / 4 + 8 * upper;
    const float factor = j < row ? fast_exp(total - decays[j]) : 1.f;
    to.updates[j] = j < row ? -(beta * (factor * d[2 * upper])) : -0.f;
    to.products[j] = j < row ? factor * d[2 * upper + 1] : 0.f;
    if (j == row) to.own = d[2 * upper + 1];
  }
}

__global__ void __launch_bounds__(kDecodeThreads, 4) decode(const StepView* step, Layer layer) {
  WEIR_DYNAMIC_SHARED(DecodeShared, memory);
  DecodeShared& shared = *memory;
  const kda::DecodePlace place(*step, blockIdx.y, layer.journal, layer.state);
  if (!place.live) {
    ptx::wait_for_previous();  // so that the launch after this one follows that one too
    return;
  }
  const kda::Columns me(shared);
  const int head = static_cast<int>(blockIdx.x), warp = me.warp, lane = me.lane, column = me.column;

  // The state is older than the kernel before this one, the row may come from it.
  DecodeRow r(place, layer, head);
  me.fetch_plane(r.plane(), r.commits);
  r.find_pages(layer);
  const float before = kda::load_if<float>(r.row > 0, r.now.decays(head) + r.row - 1);
  const ValueHistory values(layer, r, column);
  const Input which = warp == 0 ? kQ : kK;
  KeyHistory keys;
  if (warp < 2) keys.fetch(layer, r, which, lane);
  me.fetch_updates(r.old.updates(head, 0), r.earlier);
  me.fetch_inverse(r.old.inverse(head, 0), r.earlier);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int j = me.thread / 16 + 8 * i, part = me.thread % 16 * 8;
    if (j < r.earlier) ptx::copy_async16(ptx::shared_address(&shared.keys[j][part]), r.old.keys(r.key_head, j) + part);
  }
  if (me.thread < 4 && r.earlier > 0) {
    ptx::copy_async16(ptx::shared_address(&shared.decays[4 * me.thread]), r.old.decays(head) + 4 * me.thread);
  }
  ptx::commit_copies();
  ptx::wait_for_previous();
  ptx::let_next_start();

  const uint16_t* const inputs = layer.qkv.data + r.batch_row * layer.qkv.stride;
  uint2 key_input = {0, 0};
  if (warp < 2) key_input = reinterpret_cast<const uint2*>(inputs + layer.channel(which, r.key_head))[lane];
  const uint16_t x = inputs[layer.channel(kV, head) + column];
  const float total = before + layer.log_decay(r.batch_row, head);
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
  kda::LowPlane low;
  if (r.commits) low.fetch(r.base ? r.plane() + kda::kPlane : nullptr, warp, lane);
  ptx::wait_copies<0>();
  __syncthreads();
  me.wait_for_plane(r.plane());

  if (r.commits) {
    uint32_t updates[2][4];
    float commits[4];  // of rows 2 c, 2 c + 1, 8 + 2 c, 9 + 2 c
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      commits[i] = fast_exp(shared.decays[kChunk - 1] - shared.decays[2 * me.c + i % 2 + i / 2 * 8]);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t own[4];
      me.load_updates(own, tile);
      me.combine(updates[tile], own, commits);
    }
    const float decay = fast_exp(shared.decays[kChunk - 1]);
    me.commit(
        low, updates, shared.keys[0], kKeyPitch,
        [&](int) {
          return float4{decay, decay, decay, decay};
        },
        r.next ? r.next.planes(head) : nullptr);
    me.clear_updates();
  }
  const float norm_weight = layer.norm_weight[column];
  const float beta = layer.beta(r.batch_row, head);
  const float gate = low_bf16(layer.gate.data[r.batch_row * layer.gate.stride + head * kDim + column]);
  Products d = products(shared, r.row, warp, lane);
#pragma unroll
  for (int i = 0; i < 8; ++i) d.anchor[i / 4][i % 4] *= scale;
  const kda::Columns::Inverse inverse = me.load_inverse();
  store_pairs(shared.pairs[warp], d.pairs, shared.decays, total, r.row, beta, lane);
  __syncwarp();
  me.invert(inverse, r.row, r.now ? r.now.inverse(head, r.row) : nullptr);
  const uint16_t update = static_cast<uint16_t>(pack_bf16(beta * (value - me.pick(d.anchor, 0)), 0.f));
  me.store_update(update, r.row);
  if (r.now) r.now.updates(head, r.row)[column] = update;
  const float factor = gate * fast_sigmoid(gate), normed = me.output(d.anchor, layer.norm_eps);
  layer.out[r.batch_row * layer.out_stride + head * kDim + column] =
      static_cast<uint16_t>(pack_bf16(normed * norm_weight * factor, 0.f));
  me.finish();
}

}  // namespace weir::gdn
