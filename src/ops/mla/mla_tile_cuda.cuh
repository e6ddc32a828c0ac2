// What the kernels of head products share.
#pragma once

#include "device/cuda/ptx.h"
#include "ops/mla/mla_cuda.h"

namespace weir {

// Weights as BF16, [planes, heads, outputs, inner padded to 64]: one plane, or hi and lo.
struct Planes {
  const uint16_t* data;
  int64_t padded;  // inner
  int64_t plane;   // elements
  int count;
  uint32_t reciprocal;  // 2^32 / (padded / 4), rounded up

  // The row of the i-th group of four elements; rows are `padded` long.
  __device__ int row_of(int i) const {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(i)) * reciprocal >> 32);
  }
};

// Can x be read by fours, y be written by pairs?
struct Vectors {
  bool x, y;
};

// Rows of 16-byte chunks, swizzled against bank conflicts.
__device__ uint32_t chunk_offset(int row, int chunk, int row_bytes) {
  return static_cast<uint32_t>(row * row_bytes + ((chunk ^ (row & 7)) << 4));
}

// Outputs o and o + 1, where there are such.
__device__ __forceinline__ void store_pair(float* y, int64_t o, int64_t outputs, float a, float b, bool vectors) {
  if (vectors && o + 1 < outputs) {
    *reinterpret_cast<float2*>(y + o) = {a, b};
  } else {
    if (o < outputs) y[o] = a;
    if (o + 1 < outputs) y[o + 1] = b;
  }
}

// What lies behind x goes behind y. The blocks of a head share it.
template <class T>
__device__ __forceinline__ void copy_extra(const HeadProduct& p, Vectors vectors, int64_t head, int64_t first,
                                           int64_t rows) {
  const int width = vectors.x && vectors.y && p.extra % 2 == 0 ? 2 : 1, extra = static_cast<int>(p.extra) / width;
  for (int i = blockIdx.y * T::kThreads + threadIdx.x; i < T::kRows * extra; i += gridDim.y * T::kThreads) {
    const int64_t row = first + i / extra, e = i % extra * width;
    if (row >= rows) break;
    const float* from = p.x + row * p.x_stride + head * (p.inner + p.extra) + p.inner + e;
    float* to = p.y + row * p.y_stride + head * (p.outputs + p.extra) + p.outputs + e;
    if (width == 2) {
      *reinterpret_cast<float2*>(to) = *reinterpret_cast<const float2*>(from);
    } else {
      *to = *from;
    }
  }
}

}  // namespace weir
