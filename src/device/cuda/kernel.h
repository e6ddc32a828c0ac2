// What every kernel includes: CUDA's runtime, or with WEIR_CUDA_EMULATED the emulator that runs kernels on the CPU, and
// the few helpers that all kernels share. A .cu file is compiled for both.
#pragma once

#ifdef WEIR_CUDA_EMULATED
#include "device/cuda/emulated/intrinsics.h"
#include "device/cuda/emulated/runtime.h"
#else
#include <cuda_runtime.h>
#endif

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <tuple>
#include <utility>

#include "base/math.h"
#include "base/number.h"

// Dynamic shared memory of the launch, as an array of `type` with this name, 1024-byte aligned.
#ifdef WEIR_CUDA_EMULATED
#define WEIR_DYNAMIC_SHARED(type, name) type* const name = reinterpret_cast<type*>(::weir::emulated::dynamic_shared())
#else
#define WEIR_DYNAMIC_SHARED(type, name)                                  \
  extern __shared__ __align__(1024) unsigned char weir_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(weir_dynamic_shared)
#endif

namespace weir::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// --- launching ------------------------------------------------------------------------------------------------------

// Extents of a grid or block from integers of any type.
struct Extent {
  unsigned x = 1, y = 1, z = 1;

  template <std::integral X, std::integral Y = int, std::integral Z = int>
  constexpr Extent(X x_, Y y_ = 1, Z z_ = 1)
      : x(static_cast<unsigned>(x_)), y(static_cast<unsigned>(y_)), z(static_cast<unsigned>(z_)) {}
  constexpr Extent(dim3 dim) : x(dim.x), y(dim.y), z(dim.z) {}
  operator dim3() const { return dim3(x, y, z); }
};

struct LaunchShape {
  Extent grid = 1;
  Extent block = 1;
  int64_t shared_bytes = 0;  // dynamic; above 48 KB see allow_shared
  // Consecutive blocks of grid.x that run at the same time and reach each other's shared memory (ptx.h: clusters);
  // above 8 see allow_large_clusters. Their kernels have no static shared memory.
  unsigned cluster = 1;
  // Blocks wait for each other: they all run at the same time. The caller sees that there is room for them.
  bool together = false;
  // Programmatic dependent launch: the kernel may start before the one before it has ended, and calls
  // ptx::wait_for_previous() before it touches what that one writes.
  bool overlap = false;
  std::source_location where = std::source_location::current();
};

// Launches on owner.stream() and tells owner.launched(error), an int, so that callers need not check each launch.
template <class Owner, class... Parameters, class... Arguments>
void launch(Owner& owner, const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  const cudaStream_t stream = static_cast<cudaStream_t>(owner.stream());
  const size_t shared_bytes = static_cast<size_t>(shape.shared_bytes);
#ifdef WEIR_CUDA_EMULATED
  std::tuple<Parameters...> copies(static_cast<Parameters>(arguments)...);
  const cudaError_t error = emulated::launch_kernel(
      stream, shape.grid, shape.block, shape.together ? shape.grid.x : shape.cluster, shared_bytes,
      reinterpret_cast<const void*>(kernel), [kernel, copies] { std::apply(kernel, copies); }, shape.where.file_name(),
      shape.where.line());
#else
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (shape.overlap) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
#endif
  owner.launched(static_cast<int>(error));
}

// Lets a kernel be launched with this much dynamic shared memory; once, at bind time.
template <class... Parameters>
cudaError_t allow_shared(void (*kernel)(Parameters...), int64_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// Lets a kernel be launched in clusters of 9 to 16 blocks; once, at bind time.
template <class... Parameters>
cudaError_t allow_large_clusters([[maybe_unused]] void (*kernel)(Parameters...)) {
#ifdef WEIR_CUDA_EMULATED
  return cudaSuccess;
#else
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
#endif
}

// --- 16-bit numbers -------------------------------------------------------------------------------------------------

// Two values as BF16, rounded to nearest even, the first in the low half. NaN stays NaN.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
#ifdef WEIR_CUDA_EMULATED
  return static_cast<uint32_t>(f32_to_bf16(high)) << 16 | f32_to_bf16(low);
#else
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}
__device__ __forceinline__ float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_bf16(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }
__device__ __forceinline__ float round_bf16(float value) { return low_bf16(pack_bf16(value, 0.f)); }

// The same for IEEE binary16.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
#ifdef WEIR_CUDA_EMULATED
  return static_cast<uint32_t>(f32_to_f16(high)) << 16 | f32_to_f16(low);
#else
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}
__device__ __forceinline__ float widen_f16(uint16_t bits) {
#ifdef WEIR_CUDA_EMULATED
  return f16_to_f32(bits);
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#endif
}
__device__ __forceinline__ float low_f16(uint32_t packed) { return widen_f16(static_cast<uint16_t>(packed)); }
__device__ __forceinline__ float high_f16(uint32_t packed) { return widen_f16(static_cast<uint16_t>(packed >> 16)); }

// --- reductions -----------------------------------------------------------------------------------------------------

// Over aligned groups of kLanes lanes, partners at distance kLanes / 2, ..., 2, 1; every lane gets the same bits.
template <int kLanes = 32>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}
// NaN counts as the smallest.
template <int kLanes = 32>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

}  // namespace weir::cuda
