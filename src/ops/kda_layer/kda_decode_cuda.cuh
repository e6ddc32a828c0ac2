// Spans of one row: a block for each head of each. Two barriers: when the row's operands are there, and when the
// squares for the norm are.
#pragma once

#include "ops/kda_layer/kda_decode_row_cuda.cuh"

namespace weir::kda {

// Warps 0 (q) and 1 (k): the row's operands and journal entries.
template <bool kBounded>
__device__ __forceinline__ void write_operands(DecodeShared<kBounded>& shared, const Layer& layer, const DecodeRow& r,
                                               const KeyHistory& history, const ScaledKeys<kBounded>& scaled, uint2 x,
                                               uint2 f, int warp, int lane) {
  const float4 total = history.total + log_decay4<kBounded>(unpack4(f), history.bias, history.a, layer.lower_bound);
  float4 s = convolve4(history.taps, history.inputs[0], history.inputs[1], history.inputs[2], x);
  const float factor = ptx::inverse_root_approx(cuda::warp_sum(square_sum(s)) + layer.l2_eps);
  s = s * (warp == 0 ? factor * kQueryScale : factor);
  const int which = warp == 0 ? 1 : 0;
  const uint2 plain = pack4(s);
  if constexpr (!kBounded) s = unpack4(plain);
  reinterpret_cast<uint2*>(shared.own[which])[lane] = pack4(s * exp2_4(total));
  uint2 stored = plain;
  if constexpr (kBounded) {
    stored = pack4(s * exp2_4({-total.x, -total.y, -total.z, -total.w}));
    if (warp == 1) reinterpret_cast<uint2*>(shared.keys[kChunk])[lane] = stored;
  } else {
    reinterpret_cast<uint2*>(shared.plain[which])[lane] = plain;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if ((r.row >> b & 1) == 0) continue;
      reinterpret_cast<uint2*>(shared.pair_rows[2 * b + which])[lane] = pack4(s * exp2_4(total - scaled.start(b)));
    }
  }
  if (!r.now) return;
  reinterpret_cast<uint2*>(r.now.inputs(warp == 0 ? kQ : kK, r.row))[lane] = x;
  if (warp == 0) return;
  reinterpret_cast<uint2*>(r.now.keys(r.row))[lane] = stored;
  reinterpret_cast<float4*>(r.now.decays(r.row))[lane] = total;
}

// Chains of products over the channels, interleaved: the anchor's with the row's operands (even columns kt, odd ones
// qt) for both tiles, and those of the row with the journal's keys. Rows and columns of operands that are not there may
// hold anything: their products are dropped.
struct Products {
  float anchor[2][4] = {}, pairs[4] = {};
  float own = 0.f;  // unbounded: q and k of the row
};
__device__ __forceinline__ uint2 operand(const uint16_t* row, int k) {
  return *reinterpret_cast<const uint2*>(row + 16 * k);
}
template <bool kBounded>
__device__ __forceinline__ Products products(const DecodeShared<kBounded>& shared, int t, int warp, int lane) {
  const int g = lane / 4, c = lane % 4;
  const uint16_t *own = shared.own[g % 2] + 4 * c, *low = shared.keys[kBounded && g == t ? kChunk : g] + 4 * c,
                 *high = shared.keys[kBounded && g + 8 == t ? kChunk : g + 8] + 4 * c;
  Products d;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint2 b = operand(own, k), x = operand(low, k), y = operand(high, k);
    const uint32_t keys[4] = {x.x, y.x, x.y, y.y};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const uint4 s = shared.high[2 * warp + tile][k][lane];
      const uint32_t a[4] = {s.x, s.y, s.z, s.w};
      ptx::mma_bf16(d.anchor[tile], a, b.x, b.y);
    }
    if constexpr (kBounded) {
      ptx::mma_bf16(d.pairs, keys, b.x, b.y);
    } else {
      const uint2 rows = operand(shared.pair_rows[g] + 4 * c, k);
      ptx::mma_bf16(d.pairs, keys, rows.x, rows.y);
    }
  }
  if constexpr (!kBounded) {
    const auto row = [&](int which) { return unpack4(reinterpret_cast<const uint2*>(shared.plain[which])[lane]); };
    d.own = cuda::warp_sum(dot4(row(1), row(0)));
  }
  return d;
}

// Lb and A of the row; later rows count nothing.
template <bool kBounded>
__device__ __forceinline__ void store_pairs(PairWeights& to, const Products& d, int t, float beta, int lane) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int j = g + 8 * upper;
    // Unbounded: columns 2 b, 2 b + 1 are of the block in which the row meets row j.
    const bool mine = kBounded || j >= t ? c == 0 : 31 - __clz(t ^ j) == c;
    if (!mine) continue;
    to.updates[j] = j < t ? -(beta * d.pairs[2 * upper]) : -0.f;
    to.products[j] = j < t ? d.pairs[2 * upper + 1] : 0.f;
    if (j == t) to.own = kBounded ? d.pairs[2 * upper + 1] : d.own;
  }
}

template <bool kBounded>
__global__ void __launch_bounds__(kDecodeThreads, 4) decode(const StepView* step, Layer layer) {
  WEIR_DYNAMIC_SHARED(DecodeShared<kBounded>, memory);
  DecodeShared<kBounded>& shared = *memory;
  const DecodePlace place(*step, blockIdx.y, layer.journal, layer.state);
  if (!place.live) {
    ptx::wait_for_previous();  // so that the launch after this one follows that one too
    return;
  }
  const Columns me(shared);
  const int head = static_cast<int>(blockIdx.x), warp = me.warp, lane = me.lane, column = me.column;

  // The state is older than the kernel before this one, the row may come from it.
  DecodeRow r(place, head);
  me.fetch_plane(r.base.planes(), r.commits);
  r.find_pages(head);
  ScaledKeys<kBounded> scaled(r, warp, lane);
  const ValueHistory values(layer, r, head, column);
  KeyHistory keys;
  if (warp < 2) keys.fetch(layer, r, head, warp == 0 ? kQ : kK, lane);
  me.fetch_updates(r.old.updates(0), r.earlier);
  me.fetch_inverse(r.old.inverse(0), r.earlier);
  if (kBounded && !r.commits) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int j = me.thread / 16 + 8 * i, part = me.thread % 16 * 8;
      if (j < r.earlier) ptx::copy_async16(ptx::shared_address(&shared.keys[j][part]), r.old.keys(j) + part);
    }
  }
  ptx::commit_copies();
  ptx::wait_for_previous();
  ptx::let_next_start();

  const auto row = [&](const Rows& rows) { return rows.data + r.batch_row * rows.stride + head * kDim; };
  uint2 key_input = {0, 0}, f = {0, 0};
  if (warp < 2) {
    key_input = reinterpret_cast<const uint2*>(row(warp == 0 ? layer.inputs[kQ] : layer.inputs[kK]))[lane];
    f = reinterpret_cast<const uint2*>(row(layer.f))[lane];
  }
  const uint16_t x = row(layer.inputs[kV])[column];
  scaled.settle();
  scaled.store(shared, warp);
  if (warp < 2) write_operands(shared, layer, r, keys, scaled, key_input, f, warp, lane);
  const float value = values.convolved(x);
  if (r.now) r.now.inputs(kV, r.row)[column] = x;
  if (r.next) {
    values.write_window(r.next, column);
    if (warp < 2) keys.write_window(r.next, warp == 0 ? kQ : kK, lane);
  }
  LowPlane low;
  if (r.commits) low.fetch(r.base ? r.base.planes() + kPlane : nullptr, warp, lane);
  ptx::wait_copies<0>();
  __syncthreads();
  me.wait_for_plane(r.base.planes());

  if (r.commits) {
    uint32_t updates[2][4];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t own[4];
      me.load_updates(own, tile);
      me.combine(updates[tile], own);
    }
    const float* decay = shared.decay + 4 * me.c;
    me.commit(
        low, updates, shared.keys[0], kOperandPitch,
        [&](int k) { return *reinterpret_cast<const float4*>(decay + 16 * k); }, r.next.planes());
    me.clear_updates();
  }
  const float norm_weight = layer.norm_weight[column];
  const uint16_t gate = row(layer.gate)[column];
  const float beta = fast_sigmoid(layer.beta_logit(r.batch_row, head));
  Products d = products(shared, r.row, warp, lane);
  const Columns::Inverse inverse = me.load_inverse();
  store_pairs<kBounded>(shared.pairs[warp], d, r.row, beta, lane);
  __syncwarp();
  me.invert(inverse, r.row, r.now ? r.now.inverse(r.row) : nullptr);
  const uint16_t update = static_cast<uint16_t>(pack_bf16(beta * (value - me.pick(d.anchor, 0)), 0.f));
  me.store_update(update, r.row);
  if (r.now) r.now.updates(r.row)[column] = update;
  const float factor = fast_sigmoid(low_bf16(gate)), normed = me.output(d.anchor, layer.norm_eps);
  layer.out[r.batch_row * layer.out_stride + head * kDim + column] =
      static_cast<uint16_t>(pack_bf16(normed * norm_weight * factor, 0.f));
  me.finish();
}

}  // namespace weir::kda
