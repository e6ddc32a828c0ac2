// Spans of one row: a block for each head of each. Warp w has the value columns 16 w to 16 w + 15.
#pragma once

#include "ops/gdn_layer/gdn_cuda.cuh"

namespace weir::gdn {

constexpr int kDecodeWarps = 8;
constexpr int kKeyPitch = 136, kUpdatePitch = 24;  // of rows, without bank conflicts

struct DecodeShared {
  alignas(128) uint4 high[kDecodeWarps][8][32];  // hi(S), then that of the new anchor
  alignas(16) uint16_t keys[kChunk][kKeyPitch];  // of the journal
  alignas(16) uint16_t updates[kDecodeWarps][kChunk][kUpdatePitch];
  alignas(16) uint16_t own[2][kKeyPitch];  // k, q
  float pair_factors[kChunk];              // exp(G_i - G_j), 0 where j > i
  float commit_factors[kChunk];            // exp(G_15 - G_j)
  float pairs[kChunk];                     // Lb
  alignas(16) uint16_t outputs[kChunk];    // A
  float squares[kDecodeWarps];
  uint64_t fetched;  // hi(S)
};

// The row's place, the same for all threads of a block.
struct DecodeRow {
  Sequence sequence;
  int head, key_head;
  int row;       // in its chunk
  bool commits;  // makes the anchor of its chunk
  int earlier;   // journal rows to read: those of its chunk, or all of the chunk before when it commits
  Page now, old;
  Anchor base, next;  // what it starts from; what it writes

  __device__ DecodeRow(const Sequence& of, int head_) : sequence(of), head(head_), key_head(of.layer.key_head(head_)) {
    const int64_t position = of.span.first_position, chunk = position / kChunk;
    row = static_cast<int>(position % kChunk);
    commits = of.span.anchor_position < chunk * kChunk;
    earlier = commits ? kChunk : row;
    now = of.page(chunk);
    old = commits ? of.page(chunk - 1) : now;
    base = of.anchor(of.span.anchor);
    if (commits) next = of.written(chunk * kChunk);
  }
};

// The journal rows that the row reads, into shared memory; u is 0 beyond.
__device__ __forceinline__ void fetch_journal(DecodeShared& shared, const DecodeRow& r, int thread) {
  const int warp = thread / 32, lane = thread % 32, j = thread / 16, part = thread % 16;
  if (j < r.earlier) {
    ptx::copy_async16(ptx::shared_address(&shared.keys[j][part * 8]), r.old.keys(r.key_head, j) + part * 8);
  }
  const int row = lane / 2, column = lane % 2 * 8;
  const bool live = row < r.earlier;
  ptx::copy_async16(ptx::shared_address(&shared.updates[warp][row][column]),
                    live ? r.old.updates(r.head, row) + warp * 16 + column : nullptr, live);
  ptx::commit_copies();
}

// The new anchor's windows: the last inputs of the chunk before.
__device__ __forceinline__ void write_windows(const DecodeRow& r, int thread) {
  constexpr int kParts = kRowBytes / 16;
  if (!r.next || thread >= 3 * kHistory * kParts) return;
  const Input which = static_cast<Input>(thread / (kHistory * kParts));
  if (which != kV && !r.sequence.layer.is_first(r.head)) return;
  const int row = thread / kParts % kHistory, part = thread % kParts, head = which == kV ? r.head : r.key_head;
  reinterpret_cast<uint4*>(r.next.window(which, head, row))[part] =
      reinterpret_cast<const uint4*>(r.old.inputs(which, head, kChunk - kHistory + row))[part];
}

// Four channels of a stored input, `back` rows before the span.
__device__ __forceinline__ uint2 earlier_input(const DecodeRow& r, Input which, int back, int lane) {
  const uint16_t* x = r.sequence.stored_input(which, r.key_head, r.sequence.span.first_position - back);
  return x == nullptr ? uint2{0, 0} : *reinterpret_cast<const uint2*>(x + 4 * lane);
}

// Warps 0 and 1: q and k of the row, channels 4 lane to 4 lane + 3, and their journal entries.
__device__ __forceinline__ void decode_key(DecodeShared& shared, const DecodeRow& r, Input which, int lane) {
  const Layer& layer = r.sequence.layer;
  const uint16_t* input = r.sequence.input(which, r.key_head, r.sequence.span.first_position);
  const uint2 x = reinterpret_cast<const uint2*>(input)[lane];
  const float4* taps = r.sequence.taps(which, r.key_head) + 4 * lane;
  const float4 w[4] = {taps[0], taps[1], taps[2], taps[3]};
  const float4 s = kda::convolve4(w, earlier_input(r, which, 3, lane), earlier_input(r, which, 2, lane),
                                  earlier_input(r, which, 1, lane), x);
  const float factor = ptx::inverse_root_approx(cuda::warp_sum(kda::square_sum(s)) + layer.l2_eps);
  const uint2 y = kda::pack4(which == kQ ? s * factor * kda::kQueryScale : s * factor);
  reinterpret_cast<uint2*>(shared.own[which == kQ ? 1 : 0])[lane] = y;
  if (!r.now || !layer.is_first(r.head)) return;
  reinterpret_cast<uint2*>(r.now.inputs(which, r.key_head, r.row))[lane] = x;
  if (which == kK) reinterpret_cast<uint2*>(r.now.keys(r.key_head, r.row))[lane] = y;
}

// Every warp: v of its columns, column g + 8 (c % 2) in lane 4 g + c.
__device__ __forceinline__ float decode_value(const DecodeRow& r, int column, bool store) {
  const int64_t position = r.sequence.span.first_position;
  const uint16_t x = r.sequence.input(kV, r.head, position)[column];
  float earlier[kHistory];
#pragma unroll
  for (int back = 1; back <= kHistory; ++back) {
    const uint16_t* stored = r.sequence.stored_input(kV, r.head, position - back);
    earlier[back - 1] = stored == nullptr ? 0.f : low_bf16(stored[column]);
  }
  if (store && r.now) r.now.inputs(kV, r.head, r.row)[column] = x;
  const float4 taps = r.sequence.taps(kV, r.head)[column];
  return cuda::round_bf16(kda::convolve(taps, earlier[2], earlier[1], earlier[0], low_bf16(x)));
}

// exp(G_i), the same in all threads; warp 2 makes the factors of pairs and of the commit from the journal's G.
__device__ __forceinline__ float decode_decays(DecodeShared& shared, const DecodeRow& r, int warp, int lane) {
  const Layer& layer = r.sequence.layer;
  const float before = r.commits || r.row == 0 ? 0.f : r.now.decays(r.head)[r.row - 1];
  const float total = before + layer.log_decay(r.sequence.span.first_row, r.head);
  if (warp == 2 && lane < kChunk) {
    const bool live = lane < r.earlier;
    const float g = live ? r.old.decays(r.head)[lane] : 0.f;
    shared.pair_factors[lane] = lane < r.row ? fast_exp(total - g) : lane == r.row ? 1.f : 0.f;
    if (r.commits) shared.commit_factors[lane] = fast_exp(r.old.decays(r.head)[kChunk - 1] - g);
    if (r.now && lane == r.row) r.now.decays(r.head)[lane] = total;
  }
  return fast_exp(total);
}

// The commit of a warp's 16 columns: both planes in, both out; high becomes the new hi. u is scaled.
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
      const uint4 x = low_in != nullptr ? high[k][lane] : make_uint4(0, 0, 0, 0);
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

// Two neighbouring channels of an operand row, at step k: of the step's first or second half.
__device__ __forceinline__ uint32_t operand(const uint16_t* row, int k, int half, int c) {
  return *reinterpret_cast<const uint32_t*>(row + 16 * k + 8 * half + 2 * c);
}

// Lb and A of the row, by one warp: journal keys by rows, k and q as columns 0 and 1. Rows beyond may hold anything.
__device__ __forceinline__ void pair_products(DecodeShared& shared, int row, float beta, int lane) {
  const int g = lane / 4, c = lane % 4;
  const uint16_t* low = g == row ? shared.own[0] : shared.keys[g];
  const uint16_t* high = g + 8 == row ? shared.own[0] : shared.keys[g + 8];
  float d[4] = {};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint32_t a[4] = {operand(low, k, 0, c), operand(high, k, 0, c), operand(low, k, 1, c),
                           operand(high, k, 1, c)};
    ptx::mma_bf16(d, a, operand(shared.own[g % 2], k, 0, c), operand(shared.own[g % 2], k, 1, c));
  }
  if (c != 0) return;
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int j = g + 8 * upper;
    const float factor = shared.pair_factors[j];
    shared.pairs[j] = j < row ? beta * (factor * d[2 * upper]) : 0.f;
    shared.outputs[j] = j <= row ? static_cast<uint16_t>(pack_bf16(factor * d[2 * upper + 1], 0.f)) : 0;
  }
}

__global__ void __launch_bounds__(kDecodeWarps * 32, 4) decode(const StepView* step, Layer layer) {
  WEIR_DYNAMIC_SHARED(DecodeShared, memory);
  DecodeShared& shared = *memory;
  const size_t number = blockIdx.x / static_cast<unsigned>(layer.heads);
  if (number >= step->spans.size() || step->spans[number].rows != 1) return;
  const Sequence sequence{*step, step->spans[number], layer};
  const DecodeRow r(sequence, static_cast<int>(blockIdx.x % static_cast<unsigned>(layer.heads)));
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
  const int column = warp * 16 + g + 8 * (c % 2);
  const int64_t batch_row = sequence.span.first_row;

  // The state is older than the kernel before this one, the row may come from it.
  if (thread == 0 && r.base) {
    ptx::mbarrier_init(&shared.fetched, 1);
    ptx::mbarrier_fence_init();
    ptx::mbarrier_arrive_expect(&shared.fetched, kPlaneBytes);
    ptx::bulk_load(shared.high, r.base.planes(r.head), kPlaneBytes, &shared.fetched);
  }
  fetch_journal(shared, r, thread);
  ptx::wait_for_previous();
  ptx::let_next_start();
  if (r.commits) write_windows(r, thread);
  const float beta = layer.beta(batch_row, r.head);
  const float value = decode_value(r, column, c < 2);
  const float gate = low_bf16(layer.gate.data[batch_row * layer.gate.stride + r.head * kDim + column]);
  if (warp < 2) decode_key(shared, r, warp == 0 ? kQ : kK, lane);
  const float scale = decode_decays(shared, r, warp, lane);
  ptx::wait_copies<0>();
  __syncthreads();
  if (r.base) ptx::mbarrier_wait(&shared.fetched, 0);
  __syncwarp();

  const uint32_t update_rows = ptx::shared_address(&shared.updates[warp][lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
  uint32_t updates[4];
  if (r.commits) {
    ptx::load_matrix_x4_transposed(updates, update_rows);
#pragma unroll
    for (int x = 0; x < 4; ++x) updates[x] = scale_rows(updates[x], shared.commit_factors + 2 * c + x / 2 * 8);
    const int at = warp * kda::kPlaneColumns + lane;
    commit_columns(shared.high[warp], r.base ? r.base.planes(r.head) + kda::kPlane + at : nullptr,
                   r.next ? r.next.planes(r.head) + at : nullptr, updates, shared.keys,
                   fast_exp(r.old.decays(r.head)[kChunk - 1]), lane);
    __syncwarp();
    *reinterpret_cast<uint4*>(&shared.updates[warp][lane / 2][lane % 2 * 8]) = make_uint4(0, 0, 0, 0);
    __syncwarp();
  }
  float p[4] = {};  // columns g, g + 8 of P and Q in turn
  if (r.base || r.commits) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint4 x = shared.high[warp][k][lane];
      const uint32_t a[4] = {x.x, x.y, x.z, x.w};
      ptx::mma_bf16(p, a, operand(shared.own[g % 2], k, 0, c), operand(shared.own[g % 2], k, 1, c));
    }
  }
  if (warp == 0) pair_products(shared, r.row, beta, lane);
  __syncthreads();

  float u = beta * (value - scale * (c % 2 == 0 ? p[0] : p[2]));
#pragma unroll
  for (int j = 0; j < kChunk - 1; ++j) u = fmaf(-shared.pairs[j], low_bf16(shared.updates[warp][j][column % 16]), u);
  const uint16_t stored = static_cast<uint16_t>(pack_bf16(u, 0.f));
  __syncwarp();
  if (c < 2) {
    shared.updates[warp][r.row][column % 16] = stored;
    if (r.now) r.now.updates(r.head, r.row)[column] = stored;
  }
  __syncwarp();
  ptx::load_matrix_x4_transposed(updates, update_rows);
  float o[4] = {scale * p[1], scale * p[1], scale * p[3], scale * p[3]};
  const uint32_t* outputs = reinterpret_cast<const uint32_t*>(shared.outputs);
  ptx::mma_bf16(o, updates, outputs[c], outputs[c + 4]);
  const float squares = kda::column_squares(o[0], o[2]);
  if (lane == 0) shared.squares[warp] = squares;
  __syncthreads();
  const float factor = kda::norm_factor(shared.squares, 1, layer.norm_eps);
  if (c < 2) {
    const float y = (c % 2 == 0 ? o[0] : o[2]) * factor * layer.norm_weight[column] * (gate * fast_sigmoid(gate));
    layer.out[batch_row * layer.out_stride + r.head * kDim + column] = static_cast<uint16_t>(pack_bf16(y, 0.f));
  }
}

}  // namespace weir::gdn
