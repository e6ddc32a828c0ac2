// v of a chunk: the convolution of its inputs, by a warpgroup of the serial kernel. Warp w has the rows 4 w to 4 w + 3,
// a lane the channels 4 lane to 4 lane + 3. Inputs are on their way to shared memory some chunks ahead; each warp
// copies those that it reads.
#pragma once

#include "ops/kda_layer/kda_span_state_cuda.cuh"

namespace weir::kda {

constexpr int kInputsAhead = 4;                           // chunks
constexpr int kInputRows = 4 + kHistory;                  // that a warp reads
using ValueInputs = uint2[kInputsAhead][kInputRows][32];  // of a warp

class ValueRows {
 public:
  __device__ ValueRows(const SpanPart& part, ValueInputs& inputs, int warp, int lane)
      : part_(part),
        writes_(part),
        inputs_(inputs),
        warp_(warp),
        lane_(lane),
        stride_(part.head.layer.inputs[kV].stride) {
    const Head& head = part.head;
    rows_ = head.layer.inputs[kV].data + (head.span.first_row - part.old_rows) * stride_ + head.head * kDim;
    const float4* taps = reinterpret_cast<const float4*>(head.layer.conv[kV]) + head.head * kDim + 4 * lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) taps_[i] = taps[i];
    pages_ = head.span.pages[head.layer.journal.group].data() + part.chunk(0);
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
    if (page_ != kNoPage) keep(x + kHistory, i);
    if (i + 1 < part_.end) page_ = pages_[i + 1];
    if (const Anchor next = writes_.take(i + 1); next && warp_ == kChunk / 4 - 1) {
#pragma unroll
      for (int r = 0; r < kHistory; ++r)
        reinterpret_cast<uint2*>(next.window(kV, r))[lane_] = x[kInputRows - kHistory + r];
    }
    __syncwarp();
    request(i + kInputsAhead);
  }

 private:
  // Starts the copies of chunk i's inputs: half a warp for a row. Rows before the span come from the journal or the
  // anchor's window, those beyond its end or before the sequence are 0.
  __device__ void request(int i) {
    const int half = lane_ / 16, piece = lane_ % 16 * 8;
    const int first = i * kChunk + 4 * warp_ - kHistory;  // counted from chunk 0's first row
    const uint32_t to = ptx::shared_address(&inputs_[i % kInputsAhead][half][lane_ % 16 * 2]);
    const bool inside = first >= part_.old_rows && first + kInputRows <= part_.end_row;
#pragma unroll
    for (int r = 0; r < kInputRows; r += 2) {
      if (r + half >= kInputRows) break;
      const int row = first + r + half;
      const uint16_t* from = rows_ + row * stride_;
      bool live = true;
      if (!inside) {
        live = part_.live(row);
        if (row < part_.old_rows) {
          from = part_.head.stored_input(kV, part_.head.span.anchor_position + row);
          live = from != nullptr;
        }
        if (!live) from = rows_;
      }
      ptx::copy_async16(to + r * kRowBytes, from + piece, live);
    }
    ptx::commit_copies();
  }
  // The inputs of the chunk's own rows, in the journal.
  __device__ void keep(const uint2* x, int i) const {
    const Page page = part_.head.page(part_.chunk(i));
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = 4 * warp_ + r;
      if (part_.live(i * kChunk + row)) reinterpret_cast<uint2*>(page.inputs(kV, row))[lane_] = x[r];
    }
  }

  const SpanPart& part_;
  AnchorWrites writes_;
  ValueInputs& inputs_;
  int warp_, lane_;
  const uint16_t* rows_;
  int64_t stride_;
  float4 taps_[4];
  const PageId* pages_;
  PageId page_;  // of the next chunk
};

}  // namespace weir::kda
