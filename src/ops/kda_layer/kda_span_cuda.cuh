// Spans of more than one row, second part: a block for each head of each, chunk after chunk. Two warpgroups; warp w has
// the value columns 16 w to 16 w + 15 of S in registers all the way: the accumulator of the commit (wgmma) and,
// rounded, the operand of the next anchor term. Chunk rows before the span ("old": kt = 0) bring u from the journal.
#pragma once

#include "ops/kda_layer/kda_span_state_cuda.cuh"

namespace weir::kda {

constexpr int kStages = 4, kAhead = 3;
constexpr int kStageBytes = 19 * 1024;  // swizzled operands start at multiples of 1024
static_assert(kBlockBytes <= kStageBytes);
constexpr int kOutputPitch = 20;

struct SpanShared {
  std::byte stages[kStages][kStageBytes];
  alignas(16) float outputs[kSpanWarps][kChunk][kOutputPitch];  // o of the chunk before
  float squares[2][kSpanWarps][kChunk];
  alignas(16) float norm_weight[kDim];
  uint64_t full[kStages], empty[kStages], normed;
};

// The block of chunk i, kAhead chunks early, by thread 0.
__device__ __forceinline__ void fetch_block(SpanShared& shared, const SpanPart& part, const std::byte* blocks, int i) {
  const int use = part.use(i), stage = use % kStages;
  if (use >= kStages) ptx::mbarrier_wait(&shared.empty[stage], (use / kStages - 1) & 1);
  ptx::mbarrier_arrive_expect(&shared.full[stage], kBlockBytes);
  const int64_t block = int64_t{part.block0 + i} * part.head.layer.heads + part.head.head;
  ptx::bulk_load(shared.stages[stage], blocks + block * kBlockBytes, kBlockBytes, &shared.full[stage]);
}

// The four rows of a lane in a chunk: 2 c, 2 c + 1, 8 + 2 c, 9 + 2 c.
__device__ __forceinline__ int lane_row(int r, int c) { return r / 2 * 8 + 2 * c + r % 2; }

// column_squares of four rows at once; row 2 (g % 2) + g / 2 % 2 in lane 4 g + c.
__device__ __forceinline__ float fold_squares(const float* x, int g) {
  const bool odd = g % 2 != 0, upper = g / 2 % 2 != 0;
  float pair[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    pair[i] = (odd ? x[2 + i] : x[i]) + __shfl_xor_sync(kAllLanes, odd ? x[i] : x[2 + i], 4);
  }
  const float sum = (upper ? pair[1] : pair[0]) + __shfl_xor_sync(kAllLanes, upper ? pair[0] : pair[1], 8);
  return sum + __shfl_xor_sync(kAllLanes, sum, 16);
}

// Norm, gate and store of outputs: of each chunk, row lane / 2, eight columns.
class OutputRows {
 public:
  __device__ OutputRows(const SpanPart& part, int warp, int lane)
      : row_(lane / 2), column_(warp * 16 + lane % 2 * 8), eps_(part.head.layer.norm_eps) {
    const Head& head = part.head;
    const int64_t row0 = head.span.first_row - part.old_rows + row_, x = head.head * kDim + column_;
    gate_stride_ = head.layer.gate.stride * kChunk;
    out_stride_ = head.layer.out_stride * kChunk;
    gate_ = head.layer.gate.data + row0 * head.layer.gate.stride + x;
    out_ = head.layer.out + row0 * head.layer.out_stride + x;
  }

  // After store() of the chunk before, a chunk before its own.
  __device__ void load_gate(const SpanPart& part, int i) {
    live_ = i >= part.first && part.live(i * kChunk + row_);
    if (!live_) return;
    gates_ = ptx::load_stream(reinterpret_cast<const uint4*>(gate_ + i * gate_stride_));
  }

  // Once all warps have left their squares.
  __device__ void store(SpanShared& shared, const SpanPart& part, int i, int warp) const {
    if (i < part.first) return;
    const int use = part.use(i);
    ptx::mbarrier_wait(&shared.normed, use & 1);
    __syncwarp();
    if (!live_) return;
    const float factor = norm_factor(&shared.squares[use & 1][0][row_], kChunk, eps_);
    uint2 y[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 o = *reinterpret_cast<const float4*>(&shared.outputs[warp][row_][column_ % 16 + 4 * half]),
                   w = *reinterpret_cast<const float4*>(&shared.norm_weight[column_ + 4 * half]),
                   g = unpack4(half == 0 ? uint2{gates_.x, gates_.y} : uint2{gates_.z, gates_.w});
      y[half] = pack4(o * factor * w * fast_sigmoid4(g));
    }
    ptx::store_stream(reinterpret_cast<uint4*>(out_ + i * out_stride_), uint4{y[0].x, y[0].y, y[1].x, y[1].y});
  }

 private:
  int row_, column_;
  float eps_;
  const uint16_t* gate_;
  uint16_t* out_;
  int64_t gate_stride_, out_stride_;  // of a chunk
  bool live_ = false;
  uint4 gates_;
};

// Forward substitution, two rows at a time: the quad lane that owns them solves, rounds and hands them round. a: beta
// (v - P) of the lane's four rows, columns g and g + 8 (or u, for old rows); u: rounded, packed by row.
__device__ __forceinline__ void substitute(uint32_t* u, float (*a)[2], const std::byte* block, int c) {
  const auto pairs = [&](int j_pair) { return reinterpret_cast<const float*>(block + kBlockPairs + j_pair * 128); };
#pragma unroll
  for (int p = 0; p < 8; ++p) {
    const int upper = p / 4, owner = p % 4;
    const float own = pairs(4 * upper + c)[2 * (8 * upper + 2 * c + 1)];  // of the lane's second row and its first
    uint32_t w0 = pack_bf16(a[2 * upper][0], a[2 * upper][1]);
    uint32_t w1 =
        pack_bf16(fmaf(-own, low_bf16(w0), a[2 * upper + 1][0]), fmaf(-own, high_bf16(w0), a[2 * upper + 1][1]));
    w0 = __shfl_sync(kAllLanes, w0, owner, 4);
    w1 = __shfl_sync(kAllLanes, w1, owner, 4);
    if (c == owner) u[2 * upper] = w0, u[2 * upper + 1] = w1;
#pragma unroll
    for (int half = upper; half < 2; ++half) {
      if (p == 7 || (half == 0 && owner == 3)) continue;
      const float4 l = reinterpret_cast<const float4*>(pairs(p))[4 * half + c];  // rows 8 half + 2 c, + 1
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float u0 = x == 0 ? low_bf16(w0) : high_bf16(w0), u1 = x == 0 ? low_bf16(w1) : high_bf16(w1);
        a[2 * half][x] = fmaf(-l.y, u1, fmaf(-l.x, u0, a[2 * half][x]));
        a[2 * half + 1][x] = fmaf(-l.w, u1, fmaf(-l.z, u0, a[2 * half + 1][x]));
      }
    }
  }
}

__device__ __forceinline__ uint64_t core_matrices(uint32_t address) {
  return ptx::wgmma_descriptor(address, 128, 256, ptx::Swizzle::kNone);
}

// A part of a span; s is loaded, and holds the state after it at the end.
__device__ __forceinline__ void run_part(SpanShared& shared, const SpanPart& part, const std::byte* blocks, float* s) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
  const Head& head = part.head;
  const PageId* const pages = head.span.pages[head.layer.journal.group].data() + part.chunk(0);  // by chunk of the span
  AnchorWrites writes(part);
  OutputRows outputs(part, warp, lane);
  PageId next_page = pages[part.first];
  for (int i = part.first; i < part.end; ++i) {
    const int use = part.use(i), stage = use % kStages, first = part.first_live(i), end = part.end_live(i);
    const std::byte* const block = shared.stages[stage];
    const uint32_t address = ptx::shared_address(block);
    ptx::mbarrier_wait(&shared.full[stage], (use / kStages) & 1);
    __syncwarp();
    // The anchor term: hi(S) with [kt; qt].
    float p[16];
    uint32_t high[8][4];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int x = 0; x < 4; ++x) high[k][x] = high_planes(s[8 * k + 2 * x], s[8 * k + 2 * x + 1]);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint64_t operand =
          ptx::wgmma_descriptor(address + kBlockOperands + k / 4 * 4096 + k % 4 * 32, 16, 1024, ptx::Swizzle::k128);
      ptx::wgmma_bf16<32>(p, high[k], operand, k > 0);
    }
    ptx::wgmma_commit();
    // Meanwhile: the next block, the decay for the commit (in the last chunk for nothing), v, beta, the output of the
    // chunk before.
    const PageId page_id = next_page;
    if (i + 1 < part.end) next_page = pages[i + 1];
    if (thread == 0 && i + kAhead < part.end) fetch_block(shared, part, blocks, i + kAhead);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float4 e = *reinterpret_cast<const float4*>(block + kBlockDecay + (16 * k + 4 * c) * 4);
      float* x = s + 8 * k;
      x[0] *= e.x, x[1] *= e.y, x[2] *= e.x, x[3] *= e.y, x[4] *= e.z, x[5] *= e.w, x[6] *= e.z, x[7] *= e.w;
    }
    float a[4][2], beta[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = lane_row(r, c);
      const uint16_t* v = reinterpret_cast<const uint16_t*>(block + kBlockValues + row * kValuePitch) + warp * 16 + g;
      a[r][0] = low_bf16(v[0]);
      a[r][1] = low_bf16(v[8]);
      beta[r] = reinterpret_cast<const float*>(block + kBlockBeta)[row];
    }
    outputs.store(shared, part, i - 1, warp);
    outputs.load_gate(part, i);
    __syncwarp();
    ptx::wgmma_wait<0>();
    ptx::pin<16>(p);
    float o[8];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int at = r / 2 * 4 + r % 2;
      a[r][0] = beta[r] * (a[r][0] - p[at]);
      a[r][1] = beta[r] * (a[r][1] - p[at + 2]);
    }
#pragma unroll
    for (int x = 0; x < 8; ++x) o[x] = p[8 + x];
    if (first > 0) {
      const Page page = head.page(part.chunk(i));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane_row(r, c);
        if (row >= first) continue;
        a[r][0] = low_bf16(page.updates(row)[warp * 16 + g]);
        a[r][1] = low_bf16(page.updates(row)[warp * 16 + g + 8]);
      }
    }
    uint32_t u[4];
    substitute(u, a, block, c);
    const uint32_t operand[4] = {__byte_perm(u[0], u[1], 0x5410), __byte_perm(u[0], u[1], 0x7632),
                                 __byte_perm(u[2], u[3], 0x5410), __byte_perm(u[2], u[3], 0x7632)};
    ptx::wgmma_fence();
    ptx::wgmma_bf16<16>(o, operand, core_matrices(address + kBlockOutput));
    ptx::wgmma_commit();
    ptx::wgmma_bf16<128>(s, operand, core_matrices(address + kBlockCommit));
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::pin<8>(o);
    // o of row lane_row(r), columns g and g + 8, and their squares over the warp's columns.
    float squares[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int at = r / 2 * 4 + r % 2, row = lane_row(r, c);
      shared.outputs[warp][row][g] = o[at];
      shared.outputs[warp][row][g + 8] = o[at + 2];
      squares[r] = fmaf(o[at + 2], o[at + 2], o[at] * o[at]);
    }
    const float sum = fold_squares(squares, g);
    if (g < 4) shared.squares[use & 1][warp][lane_row(g % 2 * 2 + g / 2, c)] = sum;
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.normed);
    if (page_id != kNoPage) {
      const Page page = head.page(part.chunk(i));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane_row(r, c);
        if (row < first || row >= end) continue;
        page.updates(row)[warp * 16 + g] = static_cast<uint16_t>(u[r]);
        page.updates(row)[warp * 16 + g + 8] = static_cast<uint16_t>(u[r] >> 16);
      }
    }
    ptx::wgmma_wait<0>();
    ptx::pin<64>(s);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.empty[stage]);
    if (const Anchor anchor = writes.take(i + 1)) store_anchor(s, anchor, warp, lane);
  }
  outputs.store(shared, part, part.end - 1, warp);
}

// carry: S of a span that the launch before or after works on too, [head][64 KB].
__global__ void __launch_bounds__(kSpanThreads, 1)
    span(const StepView* step, Layer layer, ChunkRange range, const std::byte* blocks, const float4* carry_in,
         float4* carry_out) {
  WEIR_DYNAMIC_SHARED(SpanShared, memory);
  SpanShared& shared = *memory;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const LongSpans spans(*step, reinterpret_cast<std::byte*>(memory + 1));
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&shared.full[i], 1);
      ptx::mbarrier_init(&shared.empty[i], kSpanWarps);
    }
    ptx::mbarrier_init(&shared.normed, kSpanWarps);
    ptx::mbarrier_fence_init();
  }
  if (thread < kDim) shared.norm_weight[thread] = layer.norm_weight[thread];
  __syncthreads();
  ptx::wait_for_previous();
  int used = 0;
  for (int item = static_cast<int>(blockIdx.x); item < spans.count() * layer.heads;
       item += static_cast<int>(gridDim.x)) {
    const LongSpan entry = spans[item / layer.heads];
    const SpanView& view = step->spans[static_cast<size_t>(entry.span)];
    const SpanPart part({*step, view, layer, item % layer.heads}, entry.first_chunk - range.first,
                        range.end - range.first, used);
    if (part.first >= part.end) continue;
    if (thread == 0) {
      for (int i = part.first; i < part.end && i < part.first + kAhead; ++i) fetch_block(shared, part, blocks, i);
    }
    float s[64];
    if (part.first == 0) {
      load_anchor(s, part.head.anchor(view.anchor), warp, lane);
    } else {
      load_carry(s, carry_in + part.head.head * (kDim * kDim / 4));
    }
    run_part(shared, part, blocks, s);
    if (part.end < part.chunks) store_carry(s, carry_out + part.head.head * (kDim * kDim / 4));
    used += part.end - part.first;
  }
}

}  // namespace weir::kda
