// Spans of more than one row, second part: a block for each head of each, chunk after chunk. Two warpgroups compute;
// warp w has the value columns 16 w to 16 w + 15 of S in registers all the way: the accumulator of the commit (wgmma)
// and, rounded, the operand of the next anchor term. Chunk rows before the span ("old") bring w from the journal. A
// third warpgroup fetches blocks and puts outputs away, a fourth makes v.
#pragma once

#include "ops/gdn_layer/gdn_prep_cuda.cuh"
#include "ops/kda_layer/kda_span_values_cuda.cuh"

namespace weir::gdn {

using kda::kSpanThreads;
using kda::kSpanWarps;

using kda::kValueThreads;

constexpr int kStages = 6, kFetched = 4;  // chunks; the latter ahead of the one that is put away
constexpr int kAllThreads = kSpanThreads + kda::kOutputThreads + kValueThreads;
// Of a thread that computes, and of others: 65,536 in all.
constexpr int kComputeRegisters = 168, kOtherRegisters = 88;

struct alignas(1024) SpanStage {
  std::byte keys[kKeyBlockBytes];  // swizzled operands start at multiples of 1024
  std::byte factors[kValueBlockBytes];
  std::byte values[kChunk * kda::kValuePitch];
};

struct SpanShared {
  SpanStage stages[kStages];
  kda::Outputs outputs;
  alignas(16) kda::ValueInputs inputs[kValueThreads / 32];
  uint64_t full[kStages], empty[kStages];
};

// The part of a head's span that a launch works on; chunks are counted from the span's first.
struct SpanPart {
  Sequence sequence;
  int head;
  int first, end;
  int block0;             // number of chunk 0 among the launch's blocks
  int used;               // chunks that the thread block has worked on before
  int old_rows, end_row;  // rows of chunk 0 before the span; rows from there to its end
  int chunks;             // of the span
  int64_t chunk0;

  __device__ SpanPart(const Sequence& of, int head_, int first_chunk, const kda::ChunkRange& range, int used_)
      : sequence(of), head(head_), block0(first_chunk - range.first), used(used_) {
    first = max(0, -block0);
    chunks = kda::span_chunks(of.span);
    end = min(chunks, range.end - first_chunk);
    old_rows = static_cast<int>(of.span.first_position - of.span.anchor_position);
    end_row = old_rows + of.span.rows;
    chunk0 = of.span.anchor_position / kChunk;
  }

  __device__ int64_t chunk(int i) const { return chunk0 + i; }
  // Rows of chunk i before the span, and before its end.
  __device__ int first_live(int i) const { return min(max(old_rows - i * kChunk, 0), kChunk); }
  __device__ int end_live(int i) const { return min(end_row - i * kChunk, kChunk); }
  __device__ bool live(int row) const { return row >= old_rows && row < end_row; }  // counted from chunk 0's first
  __device__ int use(int i) const { return used + i - first; }

  // As kda::SpanPart's.
  __device__ const SpanView& span() const { return sequence.span; }
  __device__ const PageId* pages() const { return sequence.span.pages[sequence.layer.journal.group].data() + chunk0; }
  __device__ kda::ValueSource values() const {
    const Layer& layer = sequence.layer;
    return {layer.qkv.data + (sequence.span.first_row - old_rows) * layer.qkv.stride + layer.channel(kV, head),
            static_cast<int>(layer.qkv.stride), sequence.taps(kV, head)};
  }
  __device__ const uint16_t* stored_value(int row) const {
    return sequence.stored_input(kV, head, sequence.span.anchor_position + row);
  }
  __device__ uint16_t* kept_value(int i, int row) const { return sequence.page(chunk(i)).inputs(kV, head, row); }
  __device__ uint16_t* value_window(SlotId slot, int row) const { return sequence.anchor(slot).window(kV, head, row); }
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

// The blocks of a part's chunks, by a warp, in order; the kernel that makes them may still be running.
class BlockFetch {
 public:
  __device__ BlockFetch(SpanShared& shared, const SpanPart& part, const Blocks& blocks)
      : shared_(shared), part_(part), blocks_(blocks), ready_(part.first) {
    const Layer& layer = part.sequence.layer;
    const int number = part.block0 + part.first;
    keys_ = blocks.of_keys(layer, number, layer.key_head(part.head));
    factors_ = blocks.of_values(layer, number, part.head);
  }

  // Chunk i's, when its stage is free.
  __device__ void fetch(int i, int lane) {
    const Layer& layer = part_.sequence.layer;
    const int use = part_.use(i), stage = use % kStages;
    if (i == ready_) {
      ready_ += wait_for_blocks(blocks_, part_.block0 + i, part_.block0 + part_.end, lane);
      __syncwarp();
      ptx::fence_async_global();
    }
    if (lane == 0) {
      // racecheck stages: what is written to a stage follows all reads of the chunk that had it, by `empty`; `full`
      // hands it over.
      uint64_t* const full = &shared_.full[stage];
      ptx::mbarrier_wait(&shared_.empty[stage], (use / kStages + 1) % 2);
      ptx::mbarrier_arrive_expect(full, kKeyBlockBytes + kValueBlockBytes);
      ptx::bulk_load(shared_.stages[stage].keys, keys_, kKeyBlockBytes, full);
      ptx::bulk_load(shared_.stages[stage].factors, factors_, kValueBlockBytes, full);
    }
    keys_ += int64_t{layer.key_heads} * kKeyBlockBytes;
    factors_ += int64_t{layer.heads} * kValueBlockBytes;
    __syncwarp();
  }

 private:
  SpanShared& shared_;
  const SpanPart& part_;
  const Blocks& blocks_;
  const std::byte *keys_, *factors_;  // of the next chunk
  int ready_;                         // chunks before this one have their blocks
};

// By the third warpgroup.
__device__ __forceinline__ void run_outputs(SpanShared& shared, const SpanPart& part, const Blocks& blocks) {
  const int thread = static_cast<int>(threadIdx.x) - kSpanThreads, warp = thread / 32, lane = thread % 32;
  BlockFetch blocks_of(shared, part, blocks);
  if (warp == 0) {
    for (int i = part.first; i < part.end && i < part.first + kFetched; ++i) blocks_of.fetch(i, lane);
  }
  const Layer& layer = part.sequence.layer;
  const int64_t row0 = part.sequence.span.first_row - part.old_rows, x = part.head * kDim;
  kda::OutputRows<true> rows({layer.gate.data + row0 * layer.gate.stride + x, layer.out + row0 * layer.out_stride + x,
                              layer.gate.stride, layer.out_stride, part.old_rows, part.end_row, layer.norm_eps},
                             warp, lane);
  rows.begin(part.first, part.end);
  for (int i = part.first; i < part.end; ++i) {
    if (warp == 0 && i + kFetched < part.end) blocks_of.fetch(i + kFetched, lane);
    rows.put_away(shared.outputs, part.use(i), i, part.end);
  }
}

// The four rows of a lane in a chunk: 2 c, 2 c + 1, 8 + 2 c, 9 + 2 c.
__device__ __forceinline__ int lane_row(int r, int c) { return r / 2 * 8 + 2 * c + r % 2; }

__device__ __forceinline__ uint64_t core_matrices(const std::byte* at) {
  return ptx::wgmma_descriptor(ptx::shared_address(at), 128, 256, ptx::Swizzle::kNone);
}

// A part of a span; s is loaded, and holds the state after it at the end.
__device__ __forceinline__ void run_part(SpanShared& shared, const SpanPart& part, float* s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4,
            c = lane % 4;
  const Sequence& sequence = part.sequence;
  const PageId* const pages = part.pages();
  kda::AnchorWrites<SpanPart> writes(part);
  PageId next_page = pages[part.first];
  for (int i = part.first; i < part.end; ++i) {
    const int use = part.use(i), stage = use % kStages, first = part.first_live(i), end = part.end_live(i);
    const std::byte* const factors = shared.stages[stage].factors;
    const auto row_numbers = [&](int at) { return reinterpret_cast<const float*>(factors + at); };
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
    // Meanwhile: the decay for the commit (in the last chunk for nothing), v, the rows' numbers.
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
          reinterpret_cast<const uint16_t*>(shared.stages[stage].values + lane_row(r, c) * kda::kValuePitch) +
          warp * 16 + g;
      a[r][0] = low_bf16(v[0]);
      a[r][1] = low_bf16(v[8]);
    }
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
    if (first > 0) [[unlikely]] {
      const Page page = sequence.page(part.chunk(i));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane_row(r, c);
        if (row >= first) continue;
        a[r][0] = low_bf16(page.updates(part.head, row)[warp * 16 + g]);
        a[r][1] = low_bf16(page.updates(part.head, row)[warp * 16 + g + 8]);
      }
    }
    // As operands, columns by rows; row lane_row(r) is half r % 2 of words r / 2 * 2 and, of column g + 8, the next.
    uint32_t w[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) w[x] = pack_bf16(a[x / 2 * 2][x % 2], a[x / 2 * 2 + 1][x % 2]);
    float sums[8];
    ptx::wgmma_fence();
    ptx::wgmma_bf16<16>(sums, w, core_matrices(factors), false);
    ptx::wgmma_commit();
    ptx::wgmma_bf16<16>(o, w, core_matrices(factors + kOutputs));
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::pin<8>(sums);
    uint32_t u[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      u[x] = pack_bf16(sums[2 * x] * commit[x / 2 * 2], sums[2 * x + 1] * commit[x / 2 * 2 + 1]);
    }
    ptx::wgmma_fence();
    ptx::wgmma_bf16<128, ptx::Major::kMN>(s, u, ptx::wgmma_descriptor(keys, kKeyTile, 1024, ptx::Swizzle::k128));
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::pin<8>(o);
    shared.outputs.put(o, use, warp, lane);
    if (page_id != kNoPage) [[unlikely]] {
      const Page page = sequence.page(part.chunk(i));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane_row(r, c);
        if (row < first || row >= end) continue;
        uint16_t* at = page.updates(part.head, row) + warp * 16 + g;
        at[0] = static_cast<uint16_t>(w[r / 2 * 2] >> r % 2 * 16);
        at[8] = static_cast<uint16_t>(w[r / 2 * 2 + 1] >> r % 2 * 16);
      }
    }
    ptx::wgmma_wait<0>();
    ptx::pin<64>(s);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.empty[stage]);
    if (const Anchor anchor = sequence.anchor(writes.take(i + 1))) [[unlikely]] {
      store_planes(s, anchor.planes(part.head) + warp * kda::kPlaneColumns + lane);
    }
  }
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
__global__ void __launch_bounds__(kAllThreads, 1) span(const StepView* step, Layer layer, kda::ChunkRange range,
                                                       Blocks blocks, const float4* carry_in, float4* carry_out) {
  WEIR_DYNAMIC_SHARED(SpanShared, memory);
  SpanShared& shared = *memory;
  const int thread = static_cast<int>(threadIdx.x);
  const kda::LongSpans spans(*step, reinterpret_cast<std::byte*>(memory + 1));
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&shared.full[i], 1 + kValueThreads / 32);
      ptx::mbarrier_init(&shared.empty[i], kSpanWarps);
    }
    shared.outputs.init();
    ptx::mbarrier_fence_init();
  }
  if (thread < kDim) shared.outputs.norm_weight[thread] = layer.norm_weight[thread];
  __syncthreads();
  if (thread >= kSpanThreads) {
    ptx::lower_registers<kOtherRegisters>();
    if (thread < kSpanThreads + kda::kOutputThreads) {
      for_parts(step, layer, range, spans, [&](const SpanPart& part) { run_outputs(shared, part, blocks); });
    } else {
      for_parts(step, layer, range, spans, [&](const SpanPart& part) { kda::run_values<kStages>(shared, part); });
    }
  } else {
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
      if (part.end < part.chunks) store_carry(s, carry_out + part.head * kCarry);
    });
  }
  ptx::wait_for_previous();  // whoever comes next waits for this kernel alone
}

}  // namespace weir::gdn
