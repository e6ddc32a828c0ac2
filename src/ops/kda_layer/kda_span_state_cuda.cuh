// What the serial kernel knows of a span: the part that a launch works on, S from and to anchors, the anchors to write.
#pragma once

#include "ops/kda_layer/kda_span_outputs_cuda.cuh"
#include "ops/kda_layer/kda_spans_cuda.cuh"

namespace weir::kda {

// Where inputs of v's convolution are: of chunk 0's first row on; and its taps.
struct ValueSource {
  const uint16_t* rows;
  int stride;
  const float4* taps;
};

// The part of a span that a launch works on; chunks are counted from the span's first.
struct SpanPart {
  Head head;
  int first, end, chunks;
  int block0;             // of chunk 0: in units of [head] blocks
  int used;               // chunks that the thread block has worked on before
  int old_rows, end_row;  // rows of chunk 0 before the span; rows from there to its end

  __device__ SpanPart(const Head& h, int block0_, int last, int used_)
      : head(h),
        first(max(0, -block0_)),
        end(0),
        chunks(span_chunks(h.span)),
        block0(block0_),
        used(used_),
        old_rows(static_cast<int>(h.span.first_position - h.span.anchor_position)),
        end_row(old_rows + h.span.rows) {
    end = min(chunks, last - block0);
  }

  __device__ int64_t chunk(int i) const { return head.span.anchor_position / kChunk + i; }
  __device__ int first_live(int i) const { return min(max(old_rows - i * kChunk, 0), kChunk); }
  __device__ int end_live(int i) const { return min(end_row - i * kChunk, kChunk); }
  __device__ bool live(int row) const { return row >= old_rows && row < end_row; }  // counted from chunk 0's first
  __device__ int use(int i) const { return used + i - first; }

  __device__ const SpanView& span() const { return head.span; }
  __device__ const PageId* pages() const {  // from chunk 0 on
    return head.span.pages[head.layer.journal.group].data() + chunk(0);
  }
  __device__ ValueSource values() const {
    const Rows& rows = head.layer.inputs[kV];
    return {rows.data + (head.span.first_row - old_rows) * rows.stride + head.head * kDim,
            static_cast<int>(rows.stride), reinterpret_cast<const float4*>(head.layer.conv[kV]) + head.head * kDim};
  }
  // One from before the span, of the row with this number counted from chunk 0's first; null: before the sequence.
  __device__ const uint16_t* stored_value(int row) const {
    return head.stored_input(kV, head.span.anchor_position + row);
  }
  __device__ uint16_t* kept_value(int i, int row) const { return head.page(chunk(i)).inputs(kV, row); }
  __device__ uint16_t* value_window(SlotId slot, int row) const { return head.anchor(slot).window(kV, row); }
};

// Of S in a thread: s[8 k + 4 h + e], e = 0, 1, is row (value column) g, channel 16 k + 4 c + 2 h + e; s[8 k + 4 h + 2
// + e] the same of row g + 8.
__device__ __forceinline__ void load_anchor(float* s, const Anchor& anchor, int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    uint4 high{}, low{};
    if (anchor) {
      const uint4* at = anchor.planes() + warp * kPlaneColumns + 32 * k + lane;
      high = at[0];
      low = at[kPlane];
    }
    join_planes(high.x, low.x, s[8 * k], s[8 * k + 1]);
    join_planes(high.y, low.y, s[8 * k + 2], s[8 * k + 3]);
    join_planes(high.z, low.z, s[8 * k + 4], s[8 * k + 5]);
    join_planes(high.w, low.w, s[8 * k + 6], s[8 * k + 7]);
  }
}
__device__ __forceinline__ void store_anchor(const float* s, const Anchor& anchor, int warp, int lane) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float* x = s + 8 * k;
    uint4* at = anchor.planes() + warp * kPlaneColumns + 32 * k + lane;
    at[0] = {high_planes(x[0], x[1]), high_planes(x[2], x[3]), high_planes(x[4], x[5]), high_planes(x[6], x[7])};
    at[kPlane] = {low_planes(x[0], x[1]), low_planes(x[2], x[3]), low_planes(x[4], x[5]), low_planes(x[6], x[7])};
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

// The anchors that a step writes within a part, in order.
template <class Part>
class AnchorWrites {
 public:
  __device__ AnchorWrites(const Part& part) : part_(part) {
    do {
      advance();
    } while (next_ <= part.first);
  }
  // Where the anchor before chunk i goes; kZeroAnchor: it isn't wanted. Asked for in order.
  __device__ SlotId take(int i) {
    if (i != next_) [[likely]]
      return kZeroAnchor;
    const SlotId slot = part_.span().anchor_writes[index_].slot;
    advance();
    return slot;
  }

 private:
  __device__ void advance() {
    const std::span<const AnchorWrite>& writes = part_.span().anchor_writes;
    ++index_;
    next_ = index_ < static_cast<int>(writes.size())
                ? static_cast<int>(writes[static_cast<size_t>(index_)].position / kChunk - part_.chunk(0))
                : part_.chunks + 1;
  }

  const Part& part_;
  int index_ = -1, next_ = 0;  // the chunk that it stands before; beyond the end when there is none
};

}  // namespace weir::kda
