// What all threads of a decode kernel's block need to know of its span, and where it finds this layer's state.
#pragma once

#include "ops/kda_layer/kda_cuda.cuh"

namespace weir::kda {

template <class T>
__device__ __forceinline__ T load_if(bool live, const void* p) {
  T x{};
  if (live) x = *static_cast<const T*>(p);
  return x;
}

// Pointers are followed in as few rounds as there are: whatever a round can load is loaded before anything is decided.
class DecodePlace {
 public:
  __device__ DecodePlace(const StepView& step, size_t index, const PageField& journal, const AnchorField& state)
      : journal_(journal) {
    const SpanView* const spans = step.spans.data();
    const size_t count = step.spans.size();
    const PoolView* const pools = step.page_pools.data();
    const PoolView anchors = step.anchor_pool;
    if ((index >= count) | (spans == nullptr)) return;  // both at once: neither is waited for alone
    const SpanView& span = spans[index];
    const int rows = span.rows;
    batch_row = span.first_row;
    const int64_t position = span.first_position, anchor_position = span.anchor_position;
    pages_ = span.pages[journal.group].data() + position / kChunk;
    pool_ = pools[journal.group];
    const SlotId anchor = span.anchor;
    const AnchorWrite* const writes = span.anchor_writes.data();
    const size_t write_count = span.anchor_writes.size();
    live = rows == 1;
    row = static_cast<int>(position % kChunk);
    commits = anchor_position < position - row;
    earlier = commits ? kChunk : row;
    if (anchor != kZeroAnchor) base = anchors.block(anchor) + state.offset;
    // A row that commits is the first of its chunk, so that no other anchor than its own can be wanted.
    if (live && commits && write_count > 0) {
      const SlotId slot = writes[0].slot;
      if (slot != kZeroAnchor) next = anchors.block(slot) + state.offset;
    }
  }
  // A round later than the rest.
  __device__ std::byte* now() const { return page(pages_[0]); }
  __device__ std::byte* before() const { return page(pages_[-1]); }

  bool live = false;  // one row
  int64_t batch_row = 0;
  int row = 0;           // in its chunk
  bool commits = false;  // makes the anchor of its chunk
  int earlier = 0;  // journal rows to read: those of its chunk, or all of the chunk before when it makes the anchor
  std::byte *base = nullptr, *next = nullptr;  // the anchor it starts from; what it writes; null: none

 private:
  __device__ std::byte* page(PageId id) const { return id == kNoPage ? nullptr : pool_.block(id) + journal_.offset; }

  const PageField& journal_;
  const PageId* pages_ = nullptr;  // of the row's chunk
  PoolView pool_;
};

}  // namespace weir::kda
