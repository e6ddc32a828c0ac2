// What the kernels of a KDA layer share: arguments, where state lies, and the arithmetic of single rows. The numeric
// specification is in kda_layer.h.
#pragma once

#include "base/step_view.h"
#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/kda_layer/kda_layout.h"

namespace weir::kda {

namespace ptx = cuda::ptx;
using cuda::high_bf16;
using cuda::kAllLanes;
using cuda::low_bf16;
using cuda::pack_bf16;

enum Input { kQ, kK, kV };

struct Rows {
  const uint16_t* data;  // BF16
  int64_t stride;
};
struct Numbers {
  const float* data;
  int64_t stride;

  __device__ float operator()(int64_t row, int head) const { return data[row * stride + head]; }
};

struct Layer {
  int heads;
  float lower_bound, l2_eps, norm_eps;
  const float* conv[3];
  const float *a, *dt_bias, *norm_weight;
  PageField journal;
  AnchorField state;
  Rows inputs[3];
  Rows f, gate;
  Numbers beta_logit;
  uint16_t* out;
  int64_t out_stride;
};

// --- arithmetic -----------------------------------------------------------------------------------------------------

constexpr float kLog2E = 1.4426950408889634f;
__device__ __forceinline__ float fast_exp(float x) { return ptx::exp2_approx(x * kLog2E); }
__device__ __forceinline__ float fast_sigmoid(float x) { return ptx::reciprocal_approx(1.f + fast_exp(-x)); }

__device__ __forceinline__ float4 unpack4(uint2 x) {
  return {low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)};
}
__device__ __forceinline__ uint2 pack4(float4 x) { return {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)}; }
__device__ __forceinline__ float4 operator*(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
__device__ __forceinline__ float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }
__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ __forceinline__ float4 operator-(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }
__device__ __forceinline__ float4 exp2_4(float4 x) {
  return {ptx::exp2_approx(x.x), ptx::exp2_approx(x.y), ptx::exp2_approx(x.z), ptx::exp2_approx(x.w)};
}
__device__ __forceinline__ float4 fast_sigmoid4(float4 x) {
  return {fast_sigmoid(x.x), fast_sigmoid(x.y), fast_sigmoid(x.z), fast_sigmoid(x.w)};
}

// Convolution and SiLU of a channel; x oldest first.
__device__ __forceinline__ float convolve(float4 taps, float x3, float x2, float x1, float x0) {
  const float c = fmaf(taps.w, x0, fmaf(taps.z, x1, fmaf(taps.y, x2, taps.x * x3)));
  return c * fast_sigmoid(c);
}
// Of four channels.
__device__ __forceinline__ float4 convolve4(const float4* taps, uint2 x3, uint2 x2, uint2 x1, uint2 x0) {
  const float4 a = unpack4(x3), b = unpack4(x2), c = unpack4(x1), d = unpack4(x0);
  return {convolve(taps[0], a.x, b.x, c.x, d.x), convolve(taps[1], a.y, b.y, c.y, d.y),
          convolve(taps[2], a.z, b.z, c.z, d.z), convolve(taps[3], a.w, b.w, c.w, d.w)};
}
__device__ __forceinline__ float dot4(float4 x, float4 y) {
  return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, x.x * y.x)));
}
__device__ __forceinline__ float square_sum(float4 x) { return dot4(x, x); }
constexpr float kQueryScale = 0.08838834764831845f;

// log(1 + e^z) = max(z, 0) + log(1 + t) with t = e^-|z|; log(1 + t) / t to 2e-7 on [0, 1], fitted at Chebyshev nodes.
__device__ __forceinline__ float fast_softplus(float z) {
  const float t = fast_exp(-fabsf(z));
  float p = 5.126102362e-3f;
  p = fmaf(p, t, -2.907406539e-2f);
  p = fmaf(p, t, 7.751608640e-2f);
  p = fmaf(p, t, -1.360224783e-1f);
  p = fmaf(p, t, 1.907688081e-1f);
  p = fmaf(p, t, -2.483539879e-1f);
  p = fmaf(p, t, 3.331812024e-1f);
  p = fmaf(p, t, -4.999944568e-1f);
  p = fmaf(p, t, 9.999999404e-1f);
  return fmaf(p, t, fmaxf(z, 0.f));
}

// To the base 2.
template <bool kBounded>
__device__ __forceinline__ float log_decay(float f, float bias, float a, float lower_bound) {
  if constexpr (kBounded) {
    const float c = -(a * kLog2E);
    return lower_bound * kLog2E * ptx::reciprocal_approx(1.f + ptx::exp2_approx(fmaf(f, c, bias * c)));
  }
  return -(a * kLog2E) * fast_softplus(f + bias);
}
template <bool kBounded>
__device__ __forceinline__ float4 log_decay4(float4 f, float4 bias, float a, float lower_bound) {
  return {log_decay<kBounded>(f.x, bias.x, a, lower_bound), log_decay<kBounded>(f.y, bias.y, a, lower_bound),
          log_decay<kBounded>(f.z, bias.z, a, lower_bound), log_decay<kBounded>(f.w, bias.w, a, lower_bound)};
}

// Whether 2^-G stays in range for all channels of a head, four a lane. Unbounded gates only.
__device__ __forceinline__ bool is_moderate(float4 total) {
  constexpr float kLeast = -64.f;
  return __all_sync(kAllLanes, fminf(fminf(total.x, total.y), fminf(total.z, total.w)) > kLeast) != 0;
}

// Two values' planes, and back.
__device__ __forceinline__ uint32_t high_planes(float a, float b) {
  return __byte_perm(__float_as_uint(a) + 0x8000u, __float_as_uint(b) + 0x8000u, 0x7632);
}
__device__ __forceinline__ uint32_t low_planes(float a, float b) {
  return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x5410);
}
__device__ __forceinline__ void join_planes(uint32_t high, uint32_t low, float& a, float& b) {
  a = __uint_as_float((high << 16) + static_cast<uint32_t>(static_cast<int32_t>(low << 16) >> 16));
  b = __uint_as_float((high & 0xffff0000u) + static_cast<uint32_t>(static_cast<int32_t>(low) >> 16));
}

// Of column pairs (x, x + 8) in lanes 4 x + c: the squares of 16 columns.
__device__ __forceinline__ float column_squares(float a, float b) {
  float sum = fmaf(b, b, a * a);
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  return sum;
}
__device__ __forceinline__ float norm_factor(const float* squares, int pitch, float eps) {
  float sum = squares[0];
#pragma unroll
  for (int group = 1; group < 8; ++group) sum += squares[group * pitch];
  return ptx::inverse_root_approx(fmaf(sum, 1.f / kDim, eps));
}

// --- state ----------------------------------------------------------------------------------------------------------

// A head's parts of a journal page.
struct Page {
  std::byte* data = nullptr;  // null: the chunk has no page

  __device__ explicit operator bool() const { return data != nullptr; }
  __device__ uint16_t* keys(int row) const { return reinterpret_cast<uint16_t*>(data) + row * kDim; }
  __device__ uint16_t* updates(int row) const { return reinterpret_cast<uint16_t*>(data + kUpdates) + row * kDim; }
  __device__ float* decays(int row) const { return reinterpret_cast<float*>(data + kDecays) + row * kDim; }
  __device__ uint16_t* inputs(int which, int row) const {
    return reinterpret_cast<uint16_t*>(data + kInputs) + (which * kChunk + row) * kDim;
  }
  __device__ float* inverse(int row) const { return reinterpret_cast<float*>(data + kInverse) + row * kChunk; }
};

// A head's parts of an anchor.
struct Anchor {
  std::byte* data = nullptr;  // null: all zeros, or not wanted

  __device__ explicit operator bool() const { return data != nullptr; }
  __device__ uint4* planes() const { return reinterpret_cast<uint4*>(data); }  // hi; lo kPlane further on
  __device__ uint16_t* window(int which, int row) const {
    return reinterpret_cast<uint16_t*>(data + kWindow) + (which * kHistory + row) * kDim;
  }
};
constexpr int kPlane = kPlaneBytes / 16;
constexpr int kPlaneColumns = kPlane / 8;  // of 16 value columns

// A head of a span.
struct Head {
  const StepView& step;
  const SpanView& span;
  const Layer& layer;
  int head;

  __device__ Page page(int64_t chunk) const {
    const size_t group = static_cast<size_t>(layer.journal.group);
    const PoolView pool = step.page_pools[group];  // before the branch: the loads overlap
    const PageId id = span.pages[group][static_cast<size_t>(chunk)];
    if (id == kNoPage) return {};
    return {pool.block(id) + layer.journal.offset + int64_t{head} * kPageHeadBytes};
  }
  __device__ Anchor anchor(SlotId slot) const {
    if (slot == kZeroAnchor) return {};
    return {step.anchor_pool.block(slot) + layer.state.offset + int64_t{head} * kAnchorHeadBytes};
  }
  // Where this step writes the anchor at a position.
  __device__ Anchor written(int64_t position) const {
    for (size_t i = 0; i < span.anchor_writes.size(); ++i) {
      if (span.anchor_writes[i].position == position) return anchor(span.anchor_writes[i].slot);
    }
    return {};
  }
  // The first position from `position` on at which this step writes an anchor; -1: none.
  __device__ int64_t next_write(int64_t position) const {
    for (size_t i = 0; i < span.anchor_writes.size(); ++i) {
      if (span.anchor_writes[i].position >= position) return span.anchor_writes[i].position;
    }
    return -1;
  }
  // A convolution's input before the span, from the journal or the anchor's window; null: before the sequence.
  __device__ const uint16_t* stored_input(int which, int64_t position) const {
    if (position < 0) return nullptr;
    if (position >= span.anchor_position) {
      return page(position / kChunk).inputs(which, static_cast<int>(position % kChunk));
    }
    return anchor(span.anchor).window(which, static_cast<int>(position - span.anchor_position + kHistory));
  }
  __device__ const uint16_t* row(const Rows& rows, int64_t position) const {
    return rows.data + (span.first_row + position - span.first_position) * rows.stride + head * kDim;
  }
};

}  // namespace weir::kda
