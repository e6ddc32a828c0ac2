// A unit is what is normalised together: a row, or a group of one. A warp or a block holds all of it in registers and
// sums over it in one order, which norm.h prescribes.
#pragma once

#include <string>

#include "base/error.h"
#include "device/cuda/kernel.h"
#include "ops/quads_cuda.cuh"

namespace weir::cuda {

inline constexpr int64_t kLongestUnit = 16384;

// Thread t of kThreads holds the quads t, t + kThreads, ...
template <int kThreads, int kQuads, bool kAligned>
struct UnitShape {
  static constexpr int kUnitThreads = kThreads;
  static constexpr int kUnitQuads = kQuads;
  static constexpr bool kWholeQuads = kAligned;
  static constexpr int kBlockThreads = kThreads < 128 ? 128 : kThreads;
  static constexpr int kUnitsPerBlock = kBlockThreads / kThreads;
};

// f(shape) with the shape for units of `size` elements.
template <class F>
void with_unit_shape(int64_t size, bool aligned, F f) {
  const auto choose = [&]<bool kAligned>() {
    if (size <= 512) return f(UnitShape<32, 4, kAligned>{});
    if (kAligned && size <= 4096) return f(UnitShape<256, 4, kAligned>{});
    if (size <= 8192) return f(UnitShape<256, 8, kAligned>{});
    f(UnitShape<1024, 4, kAligned>{});
  };
  if (aligned) {
    choose.template operator()<true>();
  } else {
    choose.template operator()<false>();
  }
}

inline void check_unit(const std::string& name, int64_t size) {
  if (size > kLongestUnit) {
    fail(name, ": expected at most ", kLongestUnit, " elements to normalise together on a GPU, found ", size);
  }
}

template <class Shape>
struct Unit {
  static constexpr int kThreads = Shape::kUnitThreads;
  static constexpr int kQuads = Shape::kUnitQuads;
  static constexpr int kWarps = kThreads / 32;

  float4 quad[kQuads];

  static __device__ __forceinline__ int first_element() { return 4 * (static_cast<int>(threadIdx.x) % kThreads); }

  // body(quad, its first element) for those that exist.
  template <class Body>
  static __device__ __forceinline__ void each_quad(int size, Body body) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int k = first_element() + 4 * kThreads * q;
      if (k < size) body(q, k);
    }
  }

  // Elements beyond `size` become zeros.
  __device__ __forceinline__ void load(const float* x, int size) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int k = first_element() + 4 * kThreads * q;
      quad[q] = float4{0.f, 0.f, 0.f, 0.f};
      if (k < size) quad[q] = load_quad<Shape::kWholeQuads>(x + k, size - k);
    }
  }

  // The sum over the unit, in all its threads. term(sum, quad's number) adds a quad to four sums. `partial`: memory of
  // the block that the last call has not used.
  template <class Term>
  __device__ __forceinline__ float sum(float* partial, Term term) const {
    float4 s{0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int q = 0; q < kQuads; ++q) term(s, q);
    const float of_warp = warp_sum((s.x + s.z) + (s.y + s.w));
    if constexpr (kWarps == 1) return of_warp;
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return warp_sum<kWarps>(partial[threadIdx.x % kWarps]);
  }

  __device__ __forceinline__ float sum_of_squares(float* partial) const {
    return sum(partial,
               [&](float4& s, int q) { s = each([](float x, float t) { return fmaf(x, x, t); }, quad[q], s); });
  }
};

}  // namespace weir::cuda
