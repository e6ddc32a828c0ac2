// Spans of one row: a block for each head of each. Warp w has the value columns 16 w to 16 w + 15. The plane that a row
// reads comes as one bulk copy, so that an SM has as many on their way as its shared memory holds.
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
  const uint2 x =
      pack4(*reinterpret_cast<const float4*>(head.row(layer.inputs[which], head.span.first_position) + 4 * lane));
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
  const uint32_t x = pack_bf16(head.row(layer.inputs[kV], head.span.first_position)[column], 0.f);
  const float4 taps = reinterpret_cast<const float4*>(layer.conv[kV])[head.head * kDim + column];
  float earlier[3];
#pragma unroll
  for (int back = 1; back <= 3; ++back) {
    const uint16_t* stored = head.stored_input(kV, head.span.first_position - back);
    earlier[back - 1] = stored == nullptr ? 0.f : low_bf16(stored[column]);
  }
  if (store && r.now) r.now.inputs(kV, r.row)[column] = static_cast<uint16_t>(x);
  return cuda::round_bf16(convolve(taps, earlier[2], earlier[1], earlier[0], low_bf16(x)));
}

// The commit of a warp's 16 columns: both planes in, both out; high becomes the new plane. All are of this lane.
__device__ __forceinline__ void commit_columns(uint4 (*high)[32], const uint4* low_in, uint4* out,
                                               const uint32_t* updates, const uint16_t (*commit)[kCommitPitch],
                                               const float* decay, int lane) {
  const int c = lane % 4;
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
      const float4 e = *reinterpret_cast<const float4*>(decay + 16 * k + 4 * c);
      uint32_t b[4];
      ptx::load_matrix_x4_transposed(b, ptx::shared_address(&commit[lane % 16][16 * k + lane / 16 * 8]));
      uint4 x = low_in != nullptr ? high[k][lane] : make_uint4(0, 0, 0, 0);
      float s[8];
      join_planes(x.x, low[i].x, s[0], s[1]);
      join_planes(x.y, low[i].y, s[2], s[3]);
      join_planes(x.z, low[i].z, s[4], s[5]);
      join_planes(x.w, low[i].w, s[6], s[7]);
      s[0] *= e.x, s[1] *= e.y, s[2] *= e.x, s[3] *= e.y;
      s[4] *= e.z, s[5] *= e.w, s[6] *= e.z, s[7] *= e.w;
      ptx::mma_bf16(s, updates, b[0], b[1]);
      ptx::mma_bf16(s + 4, updates, b[2], b[3]);
      x = {high_planes(s[0], s[1]), high_planes(s[2], s[3]), high_planes(s[4], s[5]), high_planes(s[6], s[7])};
      high[k][lane] = x;
      if (out == nullptr) continue;
      ptx::store_stream(out + k * 32, x);
      ptx::store_stream(out + kPlane + k * 32, make_uint4(low_planes(s[0], s[1]), low_planes(s[2], s[3]),
                                                          low_planes(s[4], s[5]), low_planes(s[6], s[7])));
    }
  }
}

// Sixteen rows (rows g and g + 8 of this lane given) times eight columns (of places, column g given).
__device__ __forceinline__ void row_products(float* d, const uint16_t* row, const uint16_t* row8,
                                             const uint16_t* column) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint2 x = *reinterpret_cast<const uint2*>(row + 16 * k), y = *reinterpret_cast<const uint2*>(row8 + 16 * k),
                b = *reinterpret_cast<const uint2*>(column + 16 * k);
    const uint32_t a[4] = {x.x, y.x, x.y, y.y};
    ptx::mma_bf16(d, a, b.x, b.y);
  }
}

// Where a row's place in the order of operands is: channels 4c .. 4c+3 in places 2c, 2c+1, 2c+8, 2c+9.
__device__ __forceinline__ void store_places(uint16_t* row, int pair, uint32_t value) {
  const int step = pair / 8, c = pair % 8 / 2, upper = pair % 2;
  *reinterpret_cast<uint32_t*>(row + 16 * step + 8 * upper + 2 * c) = value;
}

// Bounded gate: kd = bf16(kn exp(G_15)).
__device__ __forceinline__ void scale_commit(DecodeShared<true>& shared, int thread) {
  for (int i = thread; i < kChunk * 64; i += kDecodeWarps * 32) {
    const int j = i / 64, pair = i % 64;
    const uint32_t x = reinterpret_cast<const uint32_t*>(shared.keys[j])[pair];
    const float2 e = reinterpret_cast<const float2*>(shared.decay)[pair];
    store_places(shared.commit[j], pair, pack_bf16(low_bf16(x) * e.x, high_bf16(x) * e.y));
  }
}
// Unbounded: kd = bf16(k exp(G_15 - G_j)).
__device__ __forceinline__ void scale_commit(DecodeShared<false>& shared, int thread) {
  for (int i = thread; i < kChunk * 64; i += kDecodeWarps * 32) {
    const int j = i / 64, pair = i % 64;
    const uint32_t x = reinterpret_cast<const uint32_t*>(shared.keys[j])[pair];
    const float2 end = reinterpret_cast<const float2*>(shared.journal_decays[kChunk - 1])[pair],
                 g = reinterpret_cast<const float2*>(shared.journal_decays[j])[pair];
    store_places(shared.commit[j], pair,
                 pack_bf16(low_bf16(x) * fast_exp(end.x - g.x), high_bf16(x) * fast_exp(end.y - g.y)));
  }
}

// Unbounded: the factors of row t's pairs. Row j meets row t in the block of 2^b rows that t's bit b opens.
__device__ __forceinline__ void scale_pairs(DecodeShared<false>& shared, int t, int thread) {
  for (int i = thread; i < t * 64; i += kDecodeWarps * 32) {
    const int j = i / 64, pair = i % 64, b = 31 - __clz(t ^ j), m = (t >> b) << b;
    uint32_t& x = reinterpret_cast<uint32_t*>(shared.keys[j])[pair];
    const float2 r = reinterpret_cast<const float2*>(shared.journal_decays[m - 1])[pair],
                 g = reinterpret_cast<const float2*>(shared.journal_decays[j])[pair];
    x = pack_bf16(low_bf16(x) * fast_exp(r.x - g.x), high_bf16(x) * fast_exp(r.y - g.y));
  }
  for (int i = thread; i < 8 * 64; i += kDecodeWarps * 32) {
    const int column = i / 64, pair = i % 64, b = column / 2;
    if (((t >> b) & 1) == 0) continue;
    const uint32_t x = reinterpret_cast<const uint32_t*>(shared.plain[column % 2])[pair];
    const float2 r = reinterpret_cast<const float2*>(shared.journal_decays[((t >> b) << b) - 1])[pair],
                 g = reinterpret_cast<const float2*>(shared.own_decay)[pair];
    reinterpret_cast<uint32_t*>(shared.pair_rows[column])[pair] =
        pack_bf16(low_bf16(x) * fast_exp(g.x - r.x), high_bf16(x) * fast_exp(g.y - r.y));
  }
}

// Lb and A of the row, by warp 0 (and for the unbounded A_tt, warp 1). Operands beyond a row's own may hold anything:
// each product's column or row is dropped.
__device__ __forceinline__ void pair_products(DecodeShared<true>& shared, int t, float beta, int warp, int lane) {
  if (warp != 0) return;
  const int g = lane / 4, c = lane % 4;
  float d[4] = {};
  row_products(d, shared.keys[g == t ? kChunk : g] + 4 * c, shared.keys[g + 8 == t ? kChunk : g + 8] + 4 * c,
               shared.own[g % 2] + 4 * c);
  if (c != 0) return;
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int j = g + 8 * upper;
    shared.pairs[j] = j < t ? beta * d[2 * upper] : 0.f;
    shared.outputs[j] = j <= t ? static_cast<uint16_t>(pack_bf16(d[2 * upper + 1], 0.f)) : 0;
  }
}
__device__ __forceinline__ void pair_products(DecodeShared<false>& shared, int t, float beta, int warp, int lane) {
  const int g = lane / 4, c = lane % 4;
  float d[4] = {};
  if (warp == 0) {
    row_products(d, shared.keys[g] + 4 * c, shared.keys[g + 8] + 4 * c, shared.pair_rows[g] + 4 * c);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int j = g + 8 * upper;
      if (j < t ? 31 - __clz(t ^ j) == c : c == 0 && j > t) {
        shared.pairs[j] = j < t ? beta * d[2 * upper] : 0.f;
        shared.outputs[j] = j < t ? static_cast<uint16_t>(pack_bf16(d[2 * upper + 1], 0.f)) : 0;
      }
    }
  } else if (warp == 1) {
    row_products(d, shared.plain[0] + 4 * c, shared.plain[0] + 4 * c, shared.plain[1] + 4 * c);
    if (lane == 0) shared.pairs[t] = 0.f, shared.outputs[t] = static_cast<uint16_t>(pack_bf16(d[0], 0.f));
  }
}

// Warps 0 (q) and 1 (k): the row's operands and journal entries.
template <bool kBounded>
__device__ __forceinline__ void decode_operands(DecodeShared<kBounded>& shared, const Head& head, const DecodeRow& r,
                                                int warp, int lane) {
  const Layer& layer = head.layer;
  const float4 f = *reinterpret_cast<const float4*>(head.row(layer.f, head.span.first_position) + 4 * lane);
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

// u of column g + 8 (c % 2); rows that are not earlier count nothing: Lb is +0 there and u is 0.
__device__ __forceinline__ float decode_update(float anchor_term, float value, float beta, const float* pairs,
                                               const uint16_t (*updates)[kUpdatePitch], int column) {
  float u = beta * (value - anchor_term);
#pragma unroll
  for (int j = 0; j < kChunk - 1; ++j) u = fmaf(-pairs[j], low_bf16(updates[j][column]), u);
  return u;
}

template <bool kBounded>
__global__ void __launch_bounds__(kDecodeWarps * 32, kBounded ? 4 : 3) decode(const StepView* step, Layer layer) {
  WEIR_DYNAMIC_SHARED(DecodeShared<kBounded>, memory);
  DecodeShared<kBounded>& shared = *memory;
  const size_t span = blockIdx.x / static_cast<unsigned>(layer.heads);
  if (span >= step->spans.size() || step->spans[span].rows != 1) {
    ptx::wait_for_previous();  // so that the launch after this one follows that one too
    return;
  }
  const Head head{*step, step->spans[span], layer, static_cast<int>(blockIdx.x % static_cast<unsigned>(layer.heads))};
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
  const int column = warp * 16 + g + 8 * (c % 2);
  const DecodeRow r = decode_row(head);

  // The state is older than the kernel before this one, the row may come from it.
  if (thread == 0 && r.base) {
    ptx::mbarrier_init(&shared.fetched, 1);
    ptx::mbarrier_fence_init();
    ptx::mbarrier_arrive_expect(&shared.fetched, kPlaneBytes);
    ptx::bulk_load(shared.high, r.base.planes(), kPlaneBytes, &shared.fetched);
  }
  fetch_journal(shared, r, thread);
  ptx::wait_for_previous();
  ptx::let_next_start();
  if (r.commits) write_window(r, thread);
  const float beta = fast_sigmoid(layer.beta_logit.data[head.span.first_row * layer.beta_logit.stride + head.head]);
  const float value = decode_value(head, r, column, c < 2);
  if (warp < 2) decode_operands(shared, head, r, warp, lane);
  ptx::wait_copies<0>();
  __syncthreads();
  if constexpr (!kBounded) {
    if (!r.commits) scale_pairs(shared, r.row, thread);
  }
  if (r.commits) scale_commit(shared, thread);
  if (!kBounded || r.commits) __syncthreads();
  if (r.base) ptx::mbarrier_wait(&shared.fetched, 0);
  __syncwarp();

  const uint32_t update_rows = ptx::shared_address(&shared.updates[warp][lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
  uint32_t updates[4];
  if (r.commits) {
    ptx::load_matrix_x4_transposed(updates, update_rows);
    commit_columns(shared.high[warp], r.base ? r.base.planes() + kPlane + warp * kPlaneColumns + lane : nullptr,
                   r.next ? r.next.planes() + warp * kPlaneColumns + lane : nullptr, updates, shared.commit,
                   shared.decay, lane);
    __syncwarp();
    *reinterpret_cast<uint4*>(&shared.updates[warp][lane / 2][lane % 2 * 8]) = make_uint4(0, 0, 0, 0);
    __syncwarp();
  }

  float anchor_term[4] = {};  // even columns: kt, odd ones: qt
  if (r.base || r.commits) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint4 x = shared.high[warp][k][lane];
      const uint32_t a[4] = {x.x, x.y, x.z, x.w};
      const uint2 b = *reinterpret_cast<const uint2*>(shared.own[g % 2] + 16 * k + 4 * c);
      ptx::mma_bf16(anchor_term, a, b.x, b.y);
    }
  }
  pair_products(shared, r.row, beta, warp, lane);
  __syncthreads();

  const float u = decode_update(c % 2 == 0 ? anchor_term[0] : anchor_term[2], value, beta, shared.pairs,
                                shared.updates[warp], column % 16);
  const uint16_t rounded = static_cast<uint16_t>(pack_bf16(u, 0.f));
  __syncwarp();
  if (c < 2) {
    shared.updates[warp][r.row][column % 16] = rounded;
    if (r.now) r.now.updates(r.row)[column] = rounded;
  }
  __syncwarp();
  ptx::load_matrix_x4_transposed(updates, update_rows);
  float o[4] = {0.f, anchor_term[1], 0.f, anchor_term[3]};  // odd columns count
  const uint32_t* weights = reinterpret_cast<const uint32_t*>(shared.outputs);
  ptx::mma_bf16(o, updates, weights[c], weights[c + 4]);

  const float squares = column_squares(o[1], o[3]);
  if (lane == 0) shared.squares[warp] = squares;
  __syncthreads();
  if (c > 1) return;
  const float normed = (c == 0 ? o[1] : o[3]) * norm_factor(shared.squares, 1, layer.norm_eps);  // column g + 8 c
  const float gate = head.row(layer.gate, head.span.first_position)[column];
  layer.out[head.span.first_row * layer.out_stride + head.head * kDim + column] =
      normed * layer.norm_weight[column] * fast_sigmoid(gate);
}

}  // namespace weir::kda
