// What the kernels of a GDN layer share: arguments, and where state lies. The numeric specification is in gdn_layer.h.
#pragma once

#include "ops/gdn_layer/gdn_layout.h"
#include "ops/kda_layer/kda_cuda.cuh"

namespace weir::gdn {

namespace ptx = cuda::ptx;
using cuda::high_bf16;
using cuda::kAllLanes;
using cuda::low_bf16;
using cuda::pack_bf16;
using kda::fast_exp;
using kda::fast_sigmoid;
using kda::Input;
using kda::kK;
using kda::kQ;
using kda::kV;
using kda::operator*;
using kda::Rows;

struct Layer {
  int heads, key_heads;
  bool tiled;  // KeyHeadOrder
  float l2_eps, norm_eps;
  const float* conv;
  const float *a, *dt_bias, *norm_weight;
  PageField journal;
  AnchorField state;
  Rows qkv, gate;
  kda::Numbers a_logit, beta_logit;
  uint16_t* out;
  int64_t out_stride;

  __device__ int shared_by() const { return heads / key_heads; }
  __device__ int key_head(int head) const { return tiled ? head % key_heads : head / shared_by(); }
  // The heads of a key head; the first of them stores what they share.
  __device__ int head_of(int key_head, int i) const {
    return tiled ? key_head + i * key_heads : key_head * shared_by() + i;
  }
  __device__ bool is_first(int head) const { return tiled ? head < key_heads : head % shared_by() == 0; }

  // First channel of an input of the convolution. `head`: a key head for q and k.
  __device__ int channel(Input which, int head) const {
    return (which == kQ ? 0 : which == kK ? key_heads : 2 * key_heads) * kDim + head * kDim;
  }
  // Log decay of a head in a row of the batch.
  __device__ float log_decay(int64_t row, int head) const {
    return -(a[head] * kda::fast_softplus(a_logit(row, head) + dt_bias[head]));
  }
  __device__ float beta(int64_t row, int head) const { return fast_sigmoid(beta_logit(row, head)); }
};

// All heads in a journal page.
struct Page {
  std::byte* data = nullptr;  // null: the chunk has no page
  int key_heads = 0;

  __device__ explicit operator bool() const { return data != nullptr; }
  __device__ uint16_t* keys(int key_head, int row) const { return at(key_head * kKeyPageBytes, row); }
  __device__ uint16_t* updates(int head, int row) const { return at(values(head), row); }
  __device__ float* decays(int head) const { return reinterpret_cast<float*>(data + values(head) + kDecays); }
  __device__ float* inverse(int head, int row) const {
    return reinterpret_cast<float*>(data + values(head) + kInverse) + row * kChunk;
  }
  __device__ uint16_t* inputs(Input which, int head, int row) const {
    if (which == kV) return at(values(head) + kValueInputs, row);
    return at(head * kKeyPageBytes + kKeyInputs + (which == kK ? kChunk * kRowBytes : 0), row);
  }

 private:
  __device__ int64_t values(int head) const {
    return int64_t{key_heads} * kKeyPageBytes + int64_t{head} * kValuePageBytes;
  }
  __device__ uint16_t* at(int64_t offset, int row) const {
    return reinterpret_cast<uint16_t*>(data + offset + row * kRowBytes);
  }
};

// All heads in an anchor.
struct Anchor {
  std::byte* data = nullptr;  // null: all zeros, or not wanted
  int heads = 0;

  __device__ explicit operator bool() const { return data != nullptr; }
  // hi; lo kda::kPlane further on.
  __device__ uint4* planes(int head) const {
    return reinterpret_cast<uint4*>(data + int64_t{head} * kValueAnchorBytes);
  }
  __device__ uint16_t* window(Input which, int head, int row) const {
    const int64_t offset = which == kV ? int64_t{head} * kValueAnchorBytes + kWindow
                                       : int64_t{heads} * kValueAnchorBytes + int64_t{head} * kKeyAnchorBytes +
                                             (which == kK ? kHistory * kRowBytes : 0);
    return reinterpret_cast<uint16_t*>(data + offset + row * kRowBytes);
  }
};

struct Sequence {
  const StepView& step;
  const SpanView& span;
  const Layer& layer;

  __device__ Page page(int64_t chunk) const {
    const size_t group = static_cast<size_t>(layer.journal.group);
    const PoolView pool = step.page_pools[group];  // before the branch: the loads overlap
    const PageId id = span.pages[group][static_cast<size_t>(chunk)];
    if (id == kNoPage) return {};
    return {pool.block(id) + layer.journal.offset, layer.key_heads};
  }
  __device__ Anchor anchor(SlotId slot) const {
    if (slot == kZeroAnchor) return {};
    return {step.anchor_pool.block(slot) + layer.state.offset, layer.heads};
  }
  // Where this step writes the anchor at a position.
  __device__ Anchor written(int64_t position) const {
    for (size_t i = 0; i < span.anchor_writes.size(); ++i) {
      if (span.anchor_writes[i].position == position) return anchor(span.anchor_writes[i].slot);
    }
    return {};
  }
  __device__ int64_t row(int64_t position) const { return span.first_row + position - span.first_position; }
  __device__ const uint16_t* input(Input which, int head, int64_t position) const {
    return layer.qkv.data + row(position) * layer.qkv.stride + layer.channel(which, head);
  }
  // One from before the span, in the journal or the anchor's window; null: before the sequence.
  __device__ const uint16_t* stored_input(Input which, int head, int64_t position) const {
    if (position < 0) return nullptr;
    if (position >= span.anchor_position) {
      return page(position / kChunk).inputs(which, head, static_cast<int>(position % kChunk));
    }
    return anchor(span.anchor).window(which, head, static_cast<int>(position - span.anchor_position + kHistory));
  }
  __device__ const float4* taps(Input which, int head) const {
    return reinterpret_cast<const float4*>(layer.conv) + layer.channel(which, head);
  }
};

}  // namespace weir::gdn
