// The spans of more than one row in a step, and their chunks in one row of numbers. A span's chunks begin with the one
// that its anchor stands before.
#pragma once

#include "base/step_view.h"
#include "device/cuda/kernel.h"
#include "ops/kda_layer/kda_layout.h"

namespace weir::kda {

// Numbers of chunks that a launch works on: spans may begin before and end after.
struct ChunkRange {
  int first, end;
};

// Blocks of a launch's chunks and heads, [chunk][head], and for each a flag, [head][chunk]: not 0 when the block lies
// in memory, since the serial kernel starts while prep runs. Who has waited for a flag puts it back to 0.
struct Blocks {
  std::byte* data;
  uint32_t* flags;
  int first_head, heads, chunks;

  __device__ std::byte* at(int chunk, int head) const {
    return data + (int64_t{chunk} * heads + head - first_head) * kBlockBytes;
  }
  __device__ uint32_t* flag(int chunk, int head) const { return flags + int64_t{head - first_head} * chunks + chunk; }
};

struct LongSpan {
  int span;         // in the step
  int first_chunk;  // its number
};

__device__ inline int span_chunks(const SpanView& span) {
  if (span.rows == 1) return 0;
  return static_cast<int>(span.last_position() / kChunk - span.anchor_position / kChunk) + 1;
}

// Made by all threads of a block, in shared memory.
class LongSpans {
 public:
  static constexpr int64_t shared_bytes(int64_t spans) { return (spans + 1) * static_cast<int64_t>(sizeof(LongSpan)); }

  __device__ LongSpans(const StepView& step, std::byte* memory) : entries_(reinterpret_cast<LongSpan*>(memory)) {
    if (threadIdx.x < 32) find(step, static_cast<int>(threadIdx.x));
    __syncthreads();
    count_ = entries_[0].span;
    chunks_ = entries_[0].first_chunk;
  }

  __device__ int count() const { return count_; }
  __device__ int chunks() const { return chunks_; }
  __device__ const LongSpan& operator[](int i) const { return entries_[1 + i]; }
  // The span that chunk `number` belongs to.
  __device__ const LongSpan& of(int number) const {
    int low = 0, high = count_;  // the answer is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if ((*this)[middle].first_chunk <= number) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return (*this)[low];
  }

 private:
  __device__ void find(const StepView& step, int lane) const {
    const int spans = static_cast<int>(step.spans.size());
    int count = 0, chunks = 0;
    for (int first = 0; first < spans; first += 32) {
      const int i = first + lane, own = i < spans ? span_chunks(step.spans[static_cast<size_t>(i)]) : 0;
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int below = __shfl_up_sync(cuda::kAllLanes, sum, distance);
        if (lane >= distance) sum += below;
      }
      const unsigned found = __ballot_sync(cuda::kAllLanes, own > 0);
      if (own > 0) entries_[1 + count + __popc(found & ((1u << lane) - 1))] = {i, chunks + sum - own};
      count += __popc(found);
      chunks += __shfl_sync(cuda::kAllLanes, sum, 31);
    }
    if (lane == 0) entries_[0] = {count, chunks};
  }

  LongSpan* entries_;  // the first: how many, and chunks in all
  int count_ = 0, chunks_ = 0;
};

}  // namespace weir::kda
