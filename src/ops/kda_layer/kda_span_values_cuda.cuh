// v of a chunk: the convolution of its inputs, by a warpgroup of the serial kernels of KDA and GDN layers. Warp w has
// the rows 4 w to 4 w + 3, a lane the channels 4 lane to 4 lane + 3. Inputs are on their way to shared memory some
// chunks ahead; each warp copies those that it reads.
#pragma once

#include "ops/kda_layer/kda_span_state_cuda.cuh"

namespace weir::kda {

constexpr int kValueThreads = 4 * 32;
constexpr int kInputsAhead = 4;                           // chunks
constexpr int kInputRows = 4 + kHistory;                  // that a warp reads
using ValueInputs = uint2[kInputsAhead][kInputRows][32];  // of a warp

// Part: see SpanPart.
template <class Part>
class ValueRows {
 public:
  __device__ ValueRows(const Part& part, ValueInputs& inputs, int warp, int lane)
      : part_(part), writes_(part), inputs_(inputs), warp_(warp), lane_(lane) {
    const ValueSource source = part.values();
    stride_ = source.stride;
    next_ = source.rows + (first_row(part.first) + lane / 16) * int64_t{stride_} + lane % 16 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) taps_[i] = source.taps[4 * lane + i];
    pages_ = part.pages();
    page_ = pages_[part.first];
    ptx::wait_copies<0>();  // of the part before
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < kInputsAhead; ++i) request(part.first + i);
  }

  // Chunk i's values; chunks in order.
  __device__ void store(std::byte* values, int i) {
    ptx::wait_copies<kInputsAhead - 1>();
    __syncwarp();
    const uint2(*const from)[32] = inputs_[i % kInputsAhead];
    uint2 x[kInputRows];
#pragma unroll
    for (int r = 0; r < kInputRows; ++r) x[r] = from[r][lane_];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint2 v = pack4(convolve4(taps_, x[r], x[r + 1], x[r + 2], x[r + 3]));
      reinterpret_cast<uint2*>(values + (4 * warp_ + r) * kValuePitch)[lane_] = v;
    }
    if (page_ != kNoPage) [[unlikely]]
      keep(x + kHistory, i);
    if (i + 1 < part_.end) page_ = pages_[i + 1];
    if (const SlotId next = writes_.take(i + 1); next != kZeroAnchor && warp_ == kChunk / 4 - 1) [[unlikely]] {
#pragma unroll
      for (int r = 0; r < kHistory; ++r) {
        reinterpret_cast<uint2*>(part_.value_window(next, r))[lane_] = x[kInputRows - kHistory + r];
      }
    }
    __syncwarp();
    request(i + kInputsAhead);
  }

 private:
  // Of those that chunk i reads, counted from chunk 0's first.
  __device__ int first_row(int i) const { return i * kChunk + 4 * warp_ - kHistory; }
  // Starts the copies of chunk i's inputs, half a warp for a row; chunks in order.
  __device__ void request(int i) {
    const int half = lane_ / 16, first = first_row(i);
    const uint32_t to = ptx::shared_address(&inputs_[i % kInputsAhead][half][lane_ % 16 * 2]);
    if (first >= part_.old_rows && first + kInputRows <= part_.end_row) [[likely]] {
#pragma unroll
      for (int r = 0; r < kInputRows; r += 2) {
        if (r + half < kInputRows) ptx::copy_async16(to + r * kRowBytes, next_ + r * stride_);
      }
    } else {
      request_edge(to, first + half);
    }
    next_ += kChunk * stride_;
    ptx::commit_copies();
  }
  // Rows before the span come from the journal or the anchor's window, those beyond its end or before the sequence are
  // 0.
  __device__ void request_edge(uint32_t to, int row) const {
    const uint16_t* from = next_;
#pragma unroll 1
    for (int r = lane_ / 16; r < kInputRows; r += 2) {
      const uint16_t* x = from;
      bool live = part_.live(row);
      if (row < part_.old_rows) {
        x = part_.stored_value(row);
        live = x != nullptr;
        if (live) x += lane_ % 16 * 8;
      }
      ptx::copy_async16(to, live ? x : part_.values().rows, live);
      from += 2 * stride_;
      row += 2;
      to += 2 * kRowBytes;
    }
  }
  // The inputs of the chunk's own rows, in the journal.
  __device__ void keep(const uint2* x, int i) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = 4 * warp_ + r;
      if (part_.live(i * kChunk + row)) reinterpret_cast<uint2*>(part_.kept_value(i, row))[lane_] = x[r];
    }
  }

  const Part& part_;
  AnchorWrites<Part> writes_;
  ValueInputs& inputs_;
  int warp_, lane_;
  int stride_;
  const uint16_t* next_;  // this lane's part of the first row of the next chunk to ask for
  float4 taps_[4];
  const PageId* pages_;
  PageId page_;  // of the next chunk
};

// v of a part's chunks, by the fourth warpgroup of the serial kernel: into stages when they are empty.
template <int kStages, class Shared, class Part>
__device__ __forceinline__ void run_values(Shared& shared, const Part& part) {
  const int thread = static_cast<int>(threadIdx.x) % kValueThreads, lane = thread % 32;
  ValueRows<Part> values(part, shared.inputs[thread / 32], thread / 32, lane);
  for (int i = part.first; i < part.end; ++i) {
    const int use = part.use(i), stage = use % kStages;
    ptx::mbarrier_wait(&shared.empty[stage], (use / kStages + 1) % 2);
    __syncwarp();
    values.store(shared.stages[stage].values, i);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&shared.full[stage]);
  }
}

}  // namespace weir::kda
