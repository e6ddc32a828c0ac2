// Spans of more than one row, first part: what needs no anchor, a warp for a run of chunks of a head. It leaves blocks
// (kda_layout.h) for the serial kernel, and the journal's keys, G and convolution inputs.
#pragma once

#include <limits>

#include "ops/kda_layer/kda_prep_steep_cuda.cuh"

namespace weir::kda {

// A block fills a multiprocessor, so that others stay free for the serial kernel. Its warps work in groups, each on a
// head of its own.
constexpr int kGroupWarps = 4, kGroups = 3, kPrepThreads = kGroups * kGroupWarps * 32;
struct PrepGroup {
  HeadWeights weights;
  PrepBlock blocks[kGroupWarps];  // of warps
};

// Sends a chunk's block off, and says so when it has arrived.
class BlockSender {
 public:
  // By all lanes: the block before has left, and may be overwritten.
  __device__ void finish(int lane) {
    if (lane == 0 && flag_ != nullptr) {
      ptx::wait_bulk_stores<0>();
      ptx::fence_async_global();
      ptx::store_release(flag_, 1);
    }
    flag_ = nullptr;
    __syncwarp();
  }
  __device__ void send(const std::byte* block, std::byte* to, uint32_t* flag, int lane) {
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) {
      ptx::bulk_store(to, block, kBlockBytes);
      ptx::commit_bulk_stores();
    }
    flag_ = flag;
  }

 private:
  uint32_t* flag_ = nullptr;
};

template <bool kBounded, bool kPlain>
__device__ __forceinline__ void prep_chunk(const PrepChunk& chunk, PrepStreams& streams, PrepBlock& block,
                                           BlockSender& sender, int lane) {
  float beta_logit = 0.f;  // of row `lane`, for the end
  if (lane < kChunk && chunk.live(lane)) {
    beta_logit = chunk.head.layer.beta_logit(chunk.batch_row(lane), chunk.head.head);
  }
  sender.finish(lane);
  OperandRows<kBounded, kPlain> operands{chunk, block, lane};
  const float4 total = prep_rows<kBounded, kPlain>(chunk, streams, lane, operands);
  reinterpret_cast<float4*>(block.data + kBlockDecay)[lane] = exp2_4(total);
  __syncwarp();
  if (!kBounded && !is_moderate(total)) [[unlikely]] {
    prep_steep(chunk, streams.weights, block, beta_logit, lane);
    return;
  }
  PairSums sums;
  pair_chain<kKeyTile>(sums, block.data, block.keys(), lane);
  const CommitKeys keys(block, lane);
  prep_pairs<kBounded, kPlain>(chunk, block, sums, beta_logit, lane);
  keys.store();
}

// A turn of a group: for each of its warps a run of chunks of a head. Neighbours among turns have heads that are, and
// the same rows. Blocks take the first turns all together; then as many as `leaving` end, so that the serial kernel
// finds room, and the others do the rest.
struct PrepDeal {
  int run, together, leaving;

  __device__ int first(int group) const {
    const int own = static_cast<int>(blockIdx.x) * kGroups + group;
    return own < together ? own : first_alone(group);
  }
  __device__ int next(int turn, int group) const {
    const int groups = static_cast<int>(gridDim.x) * kGroups;
    if (turn >= together) return turn + groups - leaving * kGroups;
    turn += groups;
    return turn < together ? turn : first_alone(group);
  }

 private:
  __device__ int first_alone(int group) const {
    const int block = static_cast<int>(blockIdx.x) - leaving;
    return block < 0 ? std::numeric_limits<int>::max() : together + block * kGroups + group;
  }
};

template <bool kBounded>
__global__ void __launch_bounds__(kPrepThreads, 1)
    prep(const StepView* step, Layer layer, ChunkRange range, PrepDeal deal, Blocks blocks) {
  WEIR_DYNAMIC_SHARED(PrepGroup, groups);
  constexpr int kGroupThreads = kGroupWarps * 32;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads,
            thread = static_cast<int>(threadIdx.x) % kGroupThreads, warp = thread / 32, lane = thread % 32;
  const LongSpans spans(*step, reinterpret_cast<std::byte*>(groups + kGroups));
  ptx::wait_for_previous();
  ptx::let_next_start();  // not before: the serial kernel waits for blocks alone
  HeadWeights& weights = groups[group].weights;
  PrepBlock& block = groups[group].blocks[warp];
  BlockSender sender;
  const int end = min(range.end, spans.chunks()), runs = (end - range.first + deal.run - 1) / deal.run;
  const int turns = (runs + kGroupWarps - 1) / kGroupWarps * blocks.heads;
  int loaded = -1;  // the head whose weights are
  for (int turn = deal.first(group); turn < turns; turn = deal.next(turn, group)) {
    const int head = blocks.first_head + turn % blocks.heads;
    if (head != loaded) {
      ptx::named_barrier_sync(1 + group, kGroupThreads);
      weights.load(layer, head, thread, kGroupThreads);
      ptx::named_barrier_sync(1 + group, kGroupThreads);
      loaded = head;
    }
    const int first = range.first + (turn / blocks.heads * kGroupWarps + warp) * deal.run,
              last = min(first + deal.run, end);
    PrepStreams streams(layer, weights, head);
    bool goes_on = false;
    int64_t wanted = 0;  // where the next anchor is written
    for (int number = first; number < last; ++number) {
      const LongSpan& entry = spans.of(number);
      const SpanView& span = step->spans[static_cast<size_t>(entry.span)];
      PrepChunk chunk({*step, span, layer, head}, span.anchor_position / kChunk + number - entry.first_chunk);
      if (number + 1 == last) chunk.beyond = chunk.end;
      if (!goes_on) [[unlikely]] {
        streams.begin(chunk, lane);
        wanted = chunk.head.next_write(chunk.start + kChunk);
      }
      goes_on = chunk.beyond > kChunk;
      if (chunk.is_plain()) [[likely]] {
        prep_chunk<kBounded, true>(chunk, streams, block, sender, lane);
      } else {
        prep_chunk<kBounded, false>(chunk, streams, block, sender, lane);
      }
      sender.send(block.data, blocks.at(number - range.first, head), blocks.flag(number - range.first, head), lane);
      if (wanted != chunk.start + kChunk) continue;
      if (const Anchor next = chunk.head.written(wanted)) {
        streams.earlier[kQ].store(next, kQ, lane);
        streams.earlier[kK].store(next, kK, lane);
      }
      wanted = chunk.head.next_write(wanted + 1);
    }
  }
  sender.finish(lane);
}

}  // namespace weir::kda
