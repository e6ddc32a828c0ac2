// Spans of more than one row, second part: a block for each head of each, chunk after chunk. Two warpgroups compute;
// warp w has the value columns 16 w to 16 w + 15 of S in registers all the way: the accumulator of the commit (wgmma)
// and, rounded, the operand of the next anchor term. Chunk rows before the span ("old") bring w from the journal. A
// third warpgroup fetches blocks and puts outputs away, a fourth makes v.
#pragma once

#include "ops/kda_layer/kda_span_values_cuda.cuh"

namespace weir::kda {

constexpr int kStages = 6, kFetched = 4;  // chunks; the latter ahead of the one that is put away
constexpr int kAllThreads = kSpanThreads + kOutputThreads + kValueThreads;
// Of a thread that computes, and of others: 65,536 in all.
constexpr int kSpanRegisters = 168, kOtherRegisters = 88;

struct alignas(1024) SpanStage {
  std::byte block[kBlockBytes];  // swizzled operands start at multiples of 1024
  std::byte values[kChunk * kValuePitch];
};

struct SpanShared {
  SpanStage stages[kStages];
  Outputs outputs;
  alignas(16) ValueInputs inputs[kValueThreads / 32];
  uint64_t full[kStages], empty[kStages];
};

// How many flags from `flags` on are up, at least one of `most`; by a warp, which asks for 32 at once and puts back
// those that it counts.
__device__ inline int take_flags(uint32_t* flags, int most, int lane) {
  for (;;) {
    const bool up = lane < most && ptx::load_acquire(flags + lane) != 0;
    const unsigned down = ~__ballot_sync(kAllLanes, up);
    const int count = down == 0 ? 32 : __ffs(static_cast<int>(down)) - 1;
    if (lane < count) flags[lane] = 0;
    if (count > 0) return count;
  }
}

// The blocks of a part's chunks, by a warp; in order.
class BlockFetch {
 public:
  __device__ BlockFetch(SpanShared& shared, const SpanPart& part, const Blocks& blocks)
      : shared_(shared),
        part_(part),
        flags_(blocks.flag(part.block0, part.head.head)),
        from_(blocks.at(part.block0 + part.first, part.head.head)),
        pitch_(int64_t{blocks.heads} * kBlockBytes),
        ready_(part.first) {}

  // Chunk i's, when its stage is free.
  __device__ void fetch(int i, int lane) {
    const int use = part_.use(i), stage = use % kStages;
    if (i == ready_) {
      ready_ += take_flags(flags_ + i, part_.end - i, lane);
      __syncwarp();
      ptx::fence_async_global();
    }
    if (lane == 0) {
      // racecheck stages: what is written to a stage follows all reads of the chunk that had it, by `empty`; `full`
      // hands it over.
      ptx::mbarrier_wait(&shared_.empty[stage], (use / kStages + 1) % 2);
      ptx::mbarrier_arrive_expect(&shared_.full[stage], kBlockBytes);
      ptx::bulk_load(shared_.stages[stage].block, from_, kBlockBytes, &shared_.full[stage]);
    }
    from_ += pitch_;
    __syncwarp();
  }

 private:
  SpanShared& shared_;
  const SpanPart& part_;
  uint32_t* flags_;  // from chunk 0 on
  const std::byte* from_;
  int64_t pitch_;
  int ready_;  // chunks before this one have their blocks
};

// By the third warpgroup.
__device__ __forceinline__ void run_outputs(SpanShared& shared, const SpanPart& part, const Blocks& blocks) {
  const int thread = static_cast<int>(threadIdx.x) - kSpanThreads, warp = thread / 32, lane = thread % 32;
  BlockFetch blocks_of(shared, part, blocks);
  if (warp == 0) {
    for (int i = part.first; i < part.end && i < part.first + kFetched; ++i) blocks_of.fetch(i, lane);
  }
  const Layer& layer = part.head.layer;
  const int64_t row0 = part.head.span.first_row - part.old_rows, x = part.head.head * kDim;
  OutputRows<false> rows({layer.gate.data + row0 * layer.gate.stride + x, layer.out + row0 * layer.out_stride + x,
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

__device__ __forceinline__ uint64_t core_matrices(uint32_t address) {
  return ptx::wgmma_descriptor(address, 128, 256, ptx::Swizzle::kNone);
}

// A part of a span; s is loaded, and holds the state after it at the end.
__device__ __forceinline__ void run_part(SpanShared& shared, const SpanPart& part, float* s) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
  const Head& head = part.head;
  const PageId* const pages = part.pages();
  AnchorWrites<SpanPart> writes(part);
  PageId next_page = pages[part.first];
  for (int i = part.first; i < part.end; ++i) {
    const int use = part.use(i), stage = use % kStages, first = part.first_live(i), end = part.end_live(i);
    const std::byte* const block = shared.stages[stage].block;
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
    const uint64_t rows = ptx::wgmma_descriptor(address + kBlockOperands, 16, 1024, ptx::Swizzle::k128);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      ptx::wgmma_bf16<32>(p, high[k], rows + static_cast<uint64_t>((k / 4 * 4096 + k % 4 * 32) / 16), k > 0);
    }
    ptx::wgmma_commit();
    // Meanwhile: the decay for the commit (in the last chunk for nothing), v, beta.
    const PageId page_id = next_page;
    if (i + 1 < part.end) next_page = pages[i + 1];
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
      const uint16_t* v =
          reinterpret_cast<const uint16_t*>(shared.stages[stage].values + row * kValuePitch) + warp * 16 + g;
      a[r][0] = low_bf16(v[0]);
      a[r][1] = low_bf16(v[8]);
      beta[r] = reinterpret_cast<const float*>(block + kBlockBeta)[row];
    }
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
    if (first > 0) [[unlikely]] {
      const Page page = head.page(part.chunk(i));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane_row(r, c);
        if (row >= first) continue;
        a[r][0] = low_bf16(page.updates(row)[warp * 16 + g]);
        a[r][1] = low_bf16(page.updates(row)[warp * 16 + g + 8]);
      }
    }
    // As operands, columns by rows; row lane_row(r) is half r % 2 of words r / 2 * 2 and, of column g + 8, the next.
    uint32_t w[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) w[x] = pack_bf16(a[x / 2 * 2][x % 2], a[x / 2 * 2 + 1][x % 2]);
    float sums[8];
    ptx::wgmma_fence();
    const uint64_t inverse = core_matrices(address + kBlockInverse);
    ptx::wgmma_bf16<16>(sums, w, inverse, false);
    ptx::wgmma_commit();
    ptx::wgmma_bf16<16>(o, w, inverse + (kBlockOutput - kBlockInverse) / 16);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::pin<8>(sums);
    const uint32_t u[4] = {pack_bf16(sums[0], sums[1]), pack_bf16(sums[2], sums[3]), pack_bf16(sums[4], sums[5]),
                           pack_bf16(sums[6], sums[7])};
    ptx::wgmma_fence();
    ptx::wgmma_bf16<128>(s, u, inverse - (kBlockInverse - kBlockCommit) / 16);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::pin<8>(o);
    shared.outputs.put(o, use, warp, lane);
    if (page_id != kNoPage) [[unlikely]] {
      const Page page = head.page(part.chunk(i));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane_row(r, c);
        if (row < first || row >= end) continue;
        uint16_t* const to = page.updates(row) + warp * 16 + g;
        to[0] = static_cast<uint16_t>(w[r / 2 * 2] >> r % 2 * 16);
        to[8] = static_cast<uint16_t>(w[r / 2 * 2 + 1] >> r % 2 * 16);
      }
    }
    ptx::wgmma_wait<0>();
    ptx::pin<64>(s);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.empty[stage]);
    if (const Anchor anchor = head.anchor(writes.take(i + 1))) [[unlikely]]
      store_anchor(s, anchor, warp, lane);
  }
}

// The block's share of the launch: work(part) for each part.
template <class Work>
__device__ __forceinline__ void for_parts(const StepView* step, const Layer& layer, const ChunkRange& range,
                                          const LongSpans& spans, const Blocks& blocks, const Work& work) {
  int used = 0;
  for (int item = static_cast<int>(blockIdx.x); item < spans.count() * blocks.heads;
       item += static_cast<int>(gridDim.x)) {
    const LongSpan entry = spans[item / blocks.heads];
    const SpanView& view = step->spans[static_cast<size_t>(entry.span)];
    const SpanPart part({*step, view, layer, blocks.first_head + item % blocks.heads}, entry.first_chunk - range.first,
                        range.end - range.first, used);
    if (part.first >= part.end) continue;
    work(part);
    used += part.end - part.first;
  }
}

// carry: S of a span that the launch before or after works on too, [head][64 KB].
__global__ void __launch_bounds__(kAllThreads, 1) span(const StepView* step, Layer layer, ChunkRange range,
                                                       Blocks blocks, const float4* carry_in, float4* carry_out) {
  WEIR_DYNAMIC_SHARED(SpanShared, memory);
  SpanShared& shared = *memory;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const LongSpans spans(*step, reinterpret_cast<std::byte*>(memory + 1));
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
    if (thread < kSpanThreads + kOutputThreads) {
      for_parts(step, layer, range, spans, blocks, [&](const SpanPart& part) { run_outputs(shared, part, blocks); });
    } else {
      for_parts(step, layer, range, spans, blocks, [&](const SpanPart& part) { run_values<kStages>(shared, part); });
    }
  } else {
    ptx::raise_registers<kSpanRegisters>();
    for_parts(step, layer, range, spans, blocks, [&](const SpanPart& part) {
      constexpr int kCarry = kDim * kDim / 4;
      float s[64];
      if (part.first == 0) {
        load_anchor(s, part.head.anchor(part.head.span.anchor), warp, lane);
      } else {
        load_carry(s, carry_in + part.head.head * kCarry);
      }
      run_part(shared, part, s);
      if (part.end < part.chunks) store_carry(s, carry_out + part.head.head * kCarry);
    });
  }
  ptx::wait_for_previous();  // whoever comes next waits for this kernel alone
}

}  // namespace weir::kda
