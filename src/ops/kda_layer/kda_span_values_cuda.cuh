// v of a chunk: the convolution of its inputs, by the warpgroup of the serial kernel that also puts outputs away. Warp
// w has the rows 4 w to 4 w + 3, a lane the channels 4 lane to 4 lane + 3.
#pragma once

#include "ops/kda_layer/kda_span_state_cuda.cuh"

namespace weir::kda {

class ValueRows {
 public:
  __device__ ValueRows(const SpanPart& part, int warp, int lane)
      : part_(part), writes_(part), warp_(warp), lane_(lane), stride_(part.head.layer.inputs[kV].stride) {
    const Head& head = part.head;
    rows_ = head.layer.inputs[kV].data + (head.span.first_row - part.old_rows) * stride_ + head.head * kDim + 4 * lane;
    const float4* taps = reinterpret_cast<const float4*>(head.layer.conv[kV]) + head.head * kDim + 4 * lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) taps_[i] = taps[i];
  }

  // Chunk i's inputs.
  __device__ void load(int i) {
    const int first = i * kChunk + 4 * warp_ - kHistory;  // counted from chunk 0's first row
    const bool inside = first >= part_.old_rows && first + kRows <= part_.end_row;
#pragma unroll
    for (int x = 0; x < kRows; ++x) {
      inputs_[x] = inside ? ptx::load_stream(batch_row(first + x)) : at_edge(first + x);
    }
  }

  // Chunk i's values, after its load(); chunks in order.
  __device__ void store(std::byte* values, int i) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const uint2 v = pack4(convolve4(taps_, inputs_[x], inputs_[x + 1], inputs_[x + 2], inputs_[x + 3]));
      reinterpret_cast<uint2*>(values + (4 * warp_ + x) * kValuePitch)[lane_] = v;
    }
    if (const Page page = part_.head.page(part_.chunk(i))) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int row = 4 * warp_ + x;
        if (!part_.live(i * kChunk + row)) continue;
        reinterpret_cast<uint2*>(page.inputs(kV, row))[lane_] = inputs_[x + kHistory];
      }
    }
    if (const Anchor next = writes_.take(i + 1); next && warp_ == kChunk / 4 - 1) {
#pragma unroll
      for (int x = 0; x < kHistory; ++x)
        reinterpret_cast<uint2*>(next.window(kV, x))[lane_] = inputs_[kRows - kHistory + x];
    }
  }

 private:
  static constexpr int kRows = 4 + kHistory;

  __device__ const uint2* batch_row(int row) const { return reinterpret_cast<const uint2*>(rows_ + row * stride_); }
  // A row that may not be the span's: from before it, or 0 beyond its end.
  __device__ uint2 at_edge(int row) const {
    if (part_.live(row)) return *batch_row(row);
    const uint16_t* stored =
        row < part_.old_rows ? part_.head.stored_input(kV, part_.head.span.anchor_position + row) : nullptr;
    return stored == nullptr ? uint2{0, 0} : reinterpret_cast<const uint2*>(stored)[lane_];
  }

  const SpanPart& part_;
  AnchorWrites writes_;
  int warp_, lane_;
  const uint16_t* rows_;
  int64_t stride_;
  float4 taps_[4];
  uint2 inputs_[kRows];
};

}  // namespace weir::kda
