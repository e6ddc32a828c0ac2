// Spans of more than one row, second part: a block for each head of each, chunk after chunk. Two warpgroups; warp w has
// the value columns 16 w to 16 w + 15 of S in registers all the way: the accumulator of the commit (wgmma) and,
// rounded, the operand of the next anchor term. Chunk rows before the span ("old": Lb = 0) bring u from the journal.
#pragma once

#include "ops/gdn_layer/gdn_columns_cuda.cuh"
#include "ops/gdn_layer/gdn_prep_cuda.cuh"

namespace weir::gdn {

constexpr int kSpanWarps = 8, kSpanThreads = kSpanWarps * 32;  // that compute; a third warpgroup fetches blocks
constexpr int kComputeRegisters = 232, kFetchRegisters = 40;   // of a thread: 64,512 in all
constexpr int kStages = 4;
constexpr int kOutputPitch = 20;

struct SpanStage {
  std::byte keys[kKeyBlockBytes];  // swizzled operands start at multiples of 1024
  std::byte values[kValueBlockBytes];
};

struct SpanShared {
  SpanStage stages[kStages];
  alignas(16) float outputs[kSpanWarps][kChunk][kOutputPitch];  // o of the chunk before
  float squares[2][kSpanWarps][kChunk];
  alignas(16) float norm_weight[kDim];
  uint64_t full[kStages], empty[kStages], normed;
};

// The part of a head's span that a launch works on; chunks are counted from the span's first.
struct SpanPart {
  Sequence sequence;
  int head;
  int first, end;
  int block0;    // number of chunk 0 among the launch's blocks
  int used;      // chunks that the thread block has worked on before
  int old_rows;  // of chunk 0 and, before a boundary, all of it
  int rows;      // of the span
  int64_t chunk0;

  __device__ SpanPart(const Sequence& of, int head_, int first_chunk, const kda::ChunkRange& range, int used_)
      : sequence(of), head(head_), block0(first_chunk - range.first), used(used_) {
    first = max(0, -block0);
    end = min(kda::span_chunks(of.span), range.end - first_chunk);
    old_rows = static_cast<int>(of.span.first_position - of.span.anchor_position);
    rows = of.span.rows;
    chunk0 = of.span.anchor_position / kChunk;
  }

  __device__ int64_t chunk(int i) const { return chunk0 + i; }
  // Rows of chunk i before the span, and before its end.
  __device__ int first_live(int i) const { return min(max(old_rows - i * kChunk, 0), kChunk); }
  __device__ int end_live(int i) const { return min(old_rows + rows - i * kChunk, kChunk); }
  __device__ int use(int i) const { return used + i - first; }
};

// S in a thread: s[8 k + 4 h + e], e = 0, 1, is value column g, channel 16 k + 8 h + 2 c + e; s[8 k + 4 h + 2 + e] the
// same of column g + 8.
__device__ __forceinline__ void load_planes(float* s, const uint4* planes) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    uint4 high{}, low{};
    if (planes != nullptr) high = planes[32 * k], low = planes[kda::kPlane + 32 * k];
    kda::join_planes(high.x, low.x, s[8 * k], s[8 * k + 1]);
    kda::join_planes(high.y, low.y, s[8 * k + 2], s[8 * k + 3]);
    kda::join_planes(high.z, low.z, s[8 * k + 4], s[8 * k + 5]);
    kda::join_planes(high.w, low.w, s[8 * k + 6], s[8 * k + 7]);
  }
}
__device__ __forceinline__ void store_planes(const float* s, uint4* planes) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float* x = s + 8 * k;
    planes[32 * k] = {kda::high_planes(x[0], x[1]), kda::high_planes(x[2], x[3]), kda::high_planes(x[4], x[5]),
                      kda::high_planes(x[6], x[7])};
    planes[kda::kPlane + 32 * k] = {kda::low_planes(x[0], x[1]), kda::low_planes(x[2], x[3]),
                                    kda::low_planes(x[4], x[5]), kda::low_planes(x[6], x[7])};
  }
}
// Between launches that share a span: FP32, as the threads hold it.
__device__ __forceinline__ void load_carry(float* s, const float4* carry) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float4 x = carry[i * kSpanThreads + threadIdx.x];
    s[4 * i] = x.x, s[4 * i + 1] = x.y, s[4 * i + 2] = x.z, s[4 * i + 3] = x.w;
  }
}
__device__ __forceinline__ void store_carry(const float* s, float4* carry) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    carry[i * kSpanThreads + threadIdx.x] = {s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]};
  }
}

// How many of the chunks from `first` on have their blocks, at least one; by a warp, which asks for 32 at once.
__device__ inline int wait_for_blocks(const Blocks& blocks, int first, int end, int lane) {
  for (;;) {
    const bool done = first + lane < end && ptx::load_acquire(blocks.counts + first + lane) >= blocks.done;
    const unsigned missing = ~__ballot_sync(kAllLanes, done);
    if (missing == 0) return 32;
    if (const int count = __ffs(static_cast<int>(missing)) - 1; count > 0) return count;
  }
}

// The blocks of a part's chunks, as stages become free, by one warp; the kernel that makes them may still be running.
__device__ inline void fetch_blocks(SpanShared& shared, const SpanPart& part, const Blocks& blocks, int lane) {
  const Layer& layer = part.sequence.layer;
  const std::byte* keys = blocks.of_keys(layer, part.block0 + part.first, layer.key_head(part.head));
  const std::byte* values = blocks.of_values(layer, part.block0 + part.first, part.head);
  for (int i = part.first, ready = part.first; i < part.end; ++i) {
    if (i == ready) {
      ready += wait_for_blocks(blocks, part.block0 + i, part.block0 + part.end, lane);
      __syncwarp();
    }
    const int use = part.use(i), stage = use % kStages;
    if (use >= kStages) ptx::mbarrier_wait(&shared.empty[stage], (use / kStages - 1) & 1);
    if (lane == 0) {
      ptx::fence_async_global();
      ptx::mbarrier_arrive_expect(&shared.full[stage], kKeyBlockBytes + kValueBlockBytes);
      ptx::bulk_load(shared.stages[stage].keys, keys, kKeyBlockBytes, &shared.full[stage]);
      ptx::bulk_load(shared.stages[stage].values, values, kValueBlockBytes, &shared.full[stage]);
    }
    __syncwarp();
    keys += int64_t{layer.key_heads} * kKeyBlockBytes;
    values += int64_t{layer.heads} * kValueBlockBytes;
  }
}

// The four rows of a lane in a chunk: 2 c, 2 c + 1, 8 + 2 c, 9 + 2 c.
__device__ __forceinline__ int lane_row(int r, int c) { return r / 2 * 8 + 2 * c + r % 2; }

// Norm, gate and store of a chunk's output, row lane / 2, eight columns; the squares of all columns must be there. The
// gate is loaded a chunk early.
struct OutputRow {
  uint4 gates;
  uint16_t* out = nullptr;  // null: not a row of the span
  int row, column;

  __device__ OutputRow(const SpanPart& part, int i, int warp, int lane)
      : row(lane / 2), column(warp * 16 + lane % 2 * 8) {
    if (i < part.first || row < part.first_live(i) || row >= part.end_live(i)) return;
    const Layer& layer = part.sequence.layer;
    const int64_t batch_row = part.sequence.span.first_row + i * kChunk + row - part.old_rows;
    gates = ptx::load_stream(
        reinterpret_cast<const uint4*>(layer.gate.data + batch_row * layer.gate.stride + part.head * kDim + column));
    out = layer.out + batch_row * layer.out_stride + part.head * kDim + column;
  }

  __device__ void store(SpanShared& shared, const SpanPart& part, int i, int warp) const {
    if (i < part.first) return;
    const int use = part.use(i);
    ptx::mbarrier_wait(&shared.normed, use & 1);
    __syncwarp();
    if (out == nullptr) return;
    const float factor = kda::norm_factor(&shared.squares[use & 1][0][row], kChunk, part.sequence.layer.norm_eps);
    uint2 y[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 o = *reinterpret_cast<const float4*>(&shared.outputs[warp][row][column % 16 + 4 * half]),
                   w = *reinterpret_cast<const float4*>(&shared.norm_weight[column + 4 * half]),
                   g = kda::unpack4(half == 0 ? uint2{gates.x, gates.y} : uint2{gates.z, gates.w});
      y[half] = kda::pack4(o * factor * w * (g * kda::fast_sigmoid4(g)));
    }
    ptx::store_stream(reinterpret_cast<uint4*>(out), uint4{y[0].x, y[0].y, y[1].x, y[1].y});
  }
};

// A part of a span; s is loaded, and holds the state after it at the end.
__device__ __forceinline__ void run_part(SpanShared& shared, const SpanPart& part, float* s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4,
            c = lane % 4;
  const Sequence& sequence = part.sequence;
  const PageId* const pages = sequence.span.pages[sequence.layer.journal.group].data() + part.chunk0;
  const std::span<const AnchorWrite> writes = sequence.span.anchor_writes;
  size_t write = 0;
  while (write < writes.size() && writes[write].position <= part.chunk(part.first) * kChunk) ++write;
  const auto chunk_of_write = [&] {
    return write < writes.size() ? static_cast<int>(writes[write].position / kChunk - part.chunk0) : -1;
  };
  int wanted = chunk_of_write();  // before which an anchor is to be stored
  OutputRow output(part, part.first - 1, warp, lane);
  PageId next_page = pages[part.first];
  for (int i = part.first; i < part.end; ++i) {
    const int use = part.use(i), stage = use % kStages, first = part.first_live(i), end = part.end_live(i);
    const std::byte* const values = shared.stages[stage].values;
    const auto row_numbers = [&](int at) { return reinterpret_cast<const float*>(values + at); };
    const uint32_t keys = ptx::shared_address(shared.stages[stage].keys);
    ptx::mbarrier_wait(&shared.full[stage], (use / kStages) & 1);
    __syncwarp();
    // The anchor term: hi(S) with [k; q].
    float p[16];
    uint32_t high[8][4];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int x = 0; x < 4; ++x) high[k][x] = kda::high_planes(s[8 * k + 2 * x], s[8 * k + 2 * x + 1]);
    }
    ptx::wgmma_fence();
    const uint64_t rows = ptx::wgmma_descriptor(keys, 16, 1024, ptx::Swizzle::k128);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      ptx::wgmma_bf16<32>(p, high[k], rows + static_cast<uint64_t>((k / 4 * kKeyTile + k % 4 * 32) / 16), k > 0);
    }
    ptx::wgmma_commit();
    // Meanwhile: the decay for the commit (in the last chunk for nothing), v, the rows' numbers, the output of the
    // chunk before.
    const PageId page_id = next_page;
    if (i + 1 < part.end) next_page = pages[i + 1];
    const float decay = *row_numbers(kDecay);
#pragma unroll
    for (int x = 0; x < 64; ++x) s[x] *= decay;
    float a[4][2], beta[4], scale[4], commit[4];
    const auto lane_rows = [&](float* to, int at) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = *reinterpret_cast<const float2*>(row_numbers(at) + 8 * half + 2 * c);
        to[2 * half] = x.x;
        to[2 * half + 1] = x.y;
      }
    };
    lane_rows(beta, kBetas);
    lane_rows(scale, kScales);
    lane_rows(commit, kCommits);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint16_t* v =
          reinterpret_cast<const uint16_t*>(values + kValues + lane_row(r, c) * kValuePitch) + warp * 16 + g;
      a[r][0] = low_bf16(v[0]);
      a[r][1] = low_bf16(v[8]);
    }
    output.store(shared, part, i - 1, warp);
    output = OutputRow(part, i, warp, lane);
    ptx::wgmma_wait<0>();
    ptx::pin<16>(p);
    float o[8];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int at = r / 2 * 4 + r % 2;
      a[r][0] = beta[r] * (a[r][0] - scale[r] * p[at]);
      a[r][1] = beta[r] * (a[r][1] - scale[r] * p[at + 2]);
      o[at] = scale[r] * p[8 + at];
      o[at + 2] = scale[r] * p[8 + at + 2];
    }
    if (first > 0) {
      const Page page = sequence.page(part.chunk(i));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane_row(r, c);
        if (row >= first) continue;
        a[r][0] = low_bf16(page.updates(part.head, row)[warp * 16 + g]);
        a[r][1] = low_bf16(page.updates(part.head, row)[warp * 16 + g + 8]);
      }
    }
    float column[kChunk];
    gather_column(column, a, c);
    substitute(column, row_numbers(0));
    uint32_t u[4], w[4];
    scatter_column(u, column, c);
#pragma unroll
    for (int x = 0; x < 4; ++x) w[x] = scale_rows(u[x], commit + x / 2 * 2);
    ptx::wgmma_fence();
    ptx::wgmma_bf16<16>(o, u,
                        ptx::wgmma_descriptor(ptx::shared_address(values + kOutputs), 128, 256, ptx::Swizzle::kNone));
    ptx::wgmma_commit();
    ptx::wgmma_bf16<128, ptx::Major::kMN>(s, w, ptx::wgmma_descriptor(keys, kKeyTile, 1024, ptx::Swizzle::k128));
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
      const Page page = sequence.page(part.chunk(i));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane_row(r, c);
        if (row < first || row >= end) continue;
        uint16_t* at = page.updates(part.head, row) + warp * 16 + g;
        const uint32_t low = u[r / 2 * 2], high_column = u[r / 2 * 2 + 1];
        at[0] = static_cast<uint16_t>(r % 2 == 0 ? low : low >> 16);
        at[8] = static_cast<uint16_t>(r % 2 == 0 ? high_column : high_column >> 16);
      }
    }
    ptx::wgmma_wait<0>();
    ptx::pin<64>(s);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.empty[stage]);
    if (wanted == i + 1) {
      store_planes(s, sequence.anchor(writes[write].slot).planes(part.head) + warp * kda::kPlaneColumns + lane);
      ++write;
      wanted = chunk_of_write();
    }
  }
  output.store(shared, part, part.end - 1, warp);
}

// The block's share of the launch: work(part) for each part.
template <class Work>
__device__ __forceinline__ void for_parts(const StepView* step, const Layer& layer, const kda::ChunkRange& range,
                                          const kda::LongSpans& spans, const Work& work) {
  int used = 0;
  for (int item = static_cast<int>(blockIdx.x); item < spans.count() * layer.heads;
       item += static_cast<int>(gridDim.x)) {
    const kda::LongSpan entry = spans[item / layer.heads];
    const Sequence sequence{*step, step->spans[static_cast<size_t>(entry.span)], layer};
    const SpanPart part(sequence, item % layer.heads, entry.first_chunk, range, used);
    if (part.first >= part.end) continue;
    used += part.end - part.first;
    work(part);
  }
}

// carry: S of a span that the launch before or after works on too, [head][64 KB].
__global__ void __launch_bounds__(kSpanThreads + 128, 1)
    span(const StepView* step, Layer layer, kda::ChunkRange range, Blocks blocks, const float4* carry_in,
         float4* carry_out) {
  WEIR_DYNAMIC_SHARED(SpanShared, memory);
  SpanShared& shared = *memory;
  const int thread = static_cast<int>(threadIdx.x);
  const kda::LongSpans spans(*step, reinterpret_cast<std::byte*>(memory + 1));
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
  if (thread < kSpanThreads) {
    ptx::raise_registers<kComputeRegisters>();
    for_parts(step, layer, range, spans, [&](const SpanPart& part) {
      constexpr int kCarry = kDim * kDim / 4;
      float s[64];
      if (part.first == 0) {
        const Anchor anchor = part.sequence.anchor(part.sequence.span.anchor);
        load_planes(s, anchor ? anchor.planes(part.head) + thread / 32 * kda::kPlaneColumns + thread % 32 : nullptr);
      } else {
        load_carry(s, carry_in + part.head * kCarry);
      }
      run_part(shared, part, s);
      if (part.end < kda::span_chunks(part.sequence.span)) store_carry(s, carry_out + part.head * kCarry);
    });
  } else {
    ptx::lower_registers<kFetchRegisters>();
    if (thread < kSpanThreads + 32) {
      for_parts(step, layer, range, spans,
                [&](const SpanPart& part) { fetch_blocks(shared, part, blocks, thread % 32); });
    }
  }
  ptx::wait_for_previous();  // whoever comes next waits for this kernel alone
}

}  // namespace weir::gdn
