// Rows as quads: four floats, which a thread loads and stores at once where addresses allow.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "device/cuda/kernel.h"
#include "device/cuda_device.h"
#include "ops/linear/linear.h"

namespace weir::cuda {

// The first `live` elements; zeros for the others. Aligned: there are always four.
template <bool kAligned>
__device__ __forceinline__ float4 load_quad(const float* p, int64_t live) {
  if constexpr (kAligned) return *reinterpret_cast<const float4*>(p);
  return {p[0], live > 1 ? p[1] : 0.f, live > 2 ? p[2] : 0.f, live > 3 ? p[3] : 0.f};
}

template <bool kAligned>
__device__ __forceinline__ void store_quad(float* p, float4 v, int64_t live) {
  if constexpr (kAligned) {
    *reinterpret_cast<float4*>(p) = v;
  } else {
    p[0] = v.x;
    if (live > 1) p[1] = v.y;
    if (live > 2) p[2] = v.z;
    if (live > 3) p[3] = v.w;
  }
}

// The same to element `at` of rows of either type.
template <bool kAligned>
__device__ __forceinline__ void store_quad(void* y, RowType type, int64_t at, float4 v, int64_t live) {
  if (type == RowType::kF32) return store_quad<kAligned>(static_cast<float*>(y) + at, v, live);
  auto* to = static_cast<uint16_t*>(y) + at;
  const uint2 packed{pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
  if constexpr (kAligned) {
    *reinterpret_cast<uint2*>(to) = packed;
  } else {
    to[0] = static_cast<uint16_t>(packed.x);
    if (live > 1) to[1] = static_cast<uint16_t>(packed.x >> 16);
    if (live > 2) to[2] = static_cast<uint16_t>(packed.y);
    if (live > 3) to[3] = static_cast<uint16_t>(packed.y >> 16);
  }
}

// Function by function on the elements.
template <class Function, class... Quads>
__device__ __forceinline__ float4 each(Function f, Quads... q) {
  return {f(q.x...), f(q.y...), f(q.z...), f(q.w...)};
}

// Whether sizes and strides allow aligned quads everywhere; null pointers do.
inline bool whole_quads(std::initializer_list<const void*> buffers, std::initializer_list<int64_t> sizes) {
  for (const void* buffer : buffers) {
    if (reinterpret_cast<uintptr_t>(buffer) % 16 != 0) return false;
  }
  for (const int64_t size : sizes) {
    if (size % 4 != 0) return false;
  }
  return true;
}

// For kernels that go through rows item by item: blocks along a row in x, rows in y, about as many as can be resident.
// The blocks are small: a single row goes to as many SMs as it can.
inline constexpr int kRowThreads = 128;
inline Extent row_grid(const CudaDevice& device, int64_t rows, int64_t items_per_row) {
  const int64_t most = int64_t{16} * device.sm_count();
  const int64_t along = std::clamp<int64_t>((items_per_row + kRowThreads - 1) / kRowThreads, 1, most);
  return {along, std::clamp<int64_t>(most / along, 1, rows)};
}

inline int32_t most_rows(const StepBounds& bounds, RowSet set) {
  return set == RowSet::kAll ? bounds.rows : bounds.logit_rows;
}

}  // namespace weir::cuda
