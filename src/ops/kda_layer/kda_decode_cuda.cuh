// Spans of one row: a block for each head of each. Warp w has the value columns 16 w to 16 w + 15. The plane that a row
// reads comes as one bulk copy, so that an SM has as many on their way as its shared memory holds.
#pragma once

#include "ops/kda_layer/kda_decode_row_cuda.cuh"

namespace weir::kda {

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
  const float beta = fast_sigmoid(layer.beta_logit(head.span.first_row, head.head));
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
  const float gate = low_bf16(head.row(layer.gate, head.span.first_position)[column]);
  layer.out[head.span.first_row * layer.out_stride + head.head * kDim + column] =
      static_cast<uint16_t>(pack_bf16(normed * layer.norm_weight[column] * fast_sigmoid(gate), 0.f));
}

}  // namespace weir::kda
