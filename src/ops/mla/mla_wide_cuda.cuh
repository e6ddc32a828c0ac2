// Head products of many rows, by wgmma. A block keeps weights of one head, as many outputs as shared memory holds, and
// passes over tiles of 64 rows; while one is multiplied, the next one is read into registers. Each of its four
// warpgroups has a quarter of the outputs.
#pragma once

#include "ops/mla/mla_tile_cuda.cuh"

namespace weir {

template <int kInner_, int kWarpgroupOutputs_>
struct WideTile {
  static constexpr int kInner = kInner_, kWarpgroupOutputs = kWarpgroupOutputs_;  // inner: padded
  static constexpr int kThreads = 512, kRows = 64;
  static constexpr int kOutputs = 4 * kWarpgroupOutputs;
  static constexpr int kFours = kRows * kInner / 4 / kThreads;  // of x, of a thread
};

// 64 elements of the inner dimension for all of `rows` rows, then the next 64, as wgmma wants them.
__device__ __forceinline__ uint32_t column_offset(int rows, int row, int chunk) {
  return static_cast<uint32_t>(chunk / 8 * rows * 128) + chunk_offset(row, chunk % 8, 128);
}

template <class T>
__device__ __forceinline__ void load_wide_weights(const HeadProduct& p, const Planes& w, int64_t head, int64_t first,
                                                  uint32_t to) {
  constexpr int kChunks = T::kInner / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < T::kOutputs * kChunks; i += T::kThreads) {
    const int o = i / kChunks, c = i % kChunks;
    const bool live = first + o < p.outputs;
    const uint16_t* from = w.data + (head * p.outputs + first + (live ? o : 0)) * T::kInner + c * 8;
    cuda::ptx::copy_async16(to + column_offset(T::kOutputs, o, c), from, live);
  }
  cuda::ptx::commit_copies();
}

// A tile of x on its way from memory to shared memory.
template <class T>
struct RowsInFlight {
  static constexpr int kRowFours = T::kInner / 4, kPassRows = T::kThreads / kRowFours;
  float4 v[T::kFours];

  __device__ __forceinline__ void load(const HeadProduct& p, int64_t head, int64_t first, int64_t rows) {
    const int row = threadIdx.x / kRowFours, k = threadIdx.x % kRowFours * 4;
    const int live = k < p.inner ? static_cast<int>(min(rows - first, int64_t{T::kRows})) : 0;
    const float* x = p.x + (first + row) * p.x_stride + head * (p.inner + p.extra) + k;
#pragma unroll
    for (int b = 0; b < T::kFours; ++b, x += kPassRows * p.x_stride) {
      v[b] = row + b * kPassRows < live ? *reinterpret_cast<const float4*>(x) : float4{};
    }
  }
  __device__ __forceinline__ void store(std::byte* to) const {
    const int row = threadIdx.x / kRowFours, four = threadIdx.x % kRowFours;
#pragma unroll
    for (int b = 0; b < T::kFours; ++b) {
      *reinterpret_cast<uint2*>(to + column_offset(T::kRows, row + b * kPassRows, four / 2) + four % 2 * 8) = {
          cuda::pack_bf16(v[b].x, v[b].y), cuda::pack_bf16(v[b].z, v[b].w)};
    }
    cuda::ptx::fence_async_shared();
  }
};

__device__ __forceinline__ uint64_t k_major(uint32_t address) {
  return cuda::ptx::wgmma_descriptor(address, 16, 1024, cuda::ptx::Swizzle::k128);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    wide_product_kernel(const StepView* step, const __grid_constant__ HeadProduct p, const __grid_constant__ Planes w,
                        Vectors vectors) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  const int64_t head = blockIdx.x, first_output = static_cast<int64_t>(blockIdx.y) * T::kOutputs;
  std::byte* const x = shared + T::kOutputs * T::kInner * 2;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, lane = threadIdx.x % 32;
  const uint32_t x_address = cuda::ptx::shared_address(x);
  const uint32_t weights = cuda::ptx::shared_address(shared) + warpgroup * T::kWarpgroupOutputs * 128;
  cuda::ptx::let_next_start();
  load_wide_weights<T>(p, w, head, first_output, cuda::ptx::shared_address(shared));
  cuda::ptx::wait_for_previous();
  const int64_t rows = step->rows, stride = gridDim.z * T::kRows;
  RowsInFlight<T> ahead;
  ahead.load(p, head, blockIdx.z * T::kRows, rows);
  for (int64_t first = blockIdx.z * T::kRows; first < rows; first += stride) {
    ahead.store(x);
    cuda::ptx::wait_copies<0>();
    cuda::ptx::fence_async_shared();
    __syncthreads();
    ahead.load(p, head, first + stride, rows);
    float sum[T::kWarpgroupOutputs / 8][4];
    cuda::ptx::wgmma_fence();
#pragma unroll 4
    for (int k = 0; k < T::kInner / 16; ++k) {
      cuda::ptx::wgmma_bf16_shared<T::kWarpgroupOutputs>(
          sum[0], k_major(x_address + k / 4 * T::kRows * 128 + k % 4 * 32),
          k_major(weights + k / 4 * T::kOutputs * 128 + k % 4 * 32), k > 0);
    }
    cuda::ptx::wgmma_commit();
    copy_extra<T>(p, vectors, head, first, rows);
    cuda::ptx::wgmma_wait<0>();
    cuda::ptx::pin<T::kWarpgroupOutputs / 2>(sum[0]);
    __syncthreads();  // x has been read
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = first + threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * h;
      if (row >= rows) continue;
      float* y = p.y + row * p.y_stride + head * (p.outputs + p.extra);
#pragma unroll
      for (int n = 0; n < T::kWarpgroupOutputs / 8; ++n) {
        const int64_t o = first_output + warpgroup * T::kWarpgroupOutputs + 8 * n + lane % 4 * 2;
        store_pair(y, o, p.outputs, sum[n][2 * h], sum[n][2 * h + 1], vectors.y);
      }
    }
  }
  cuda::ptx::wait_copies<0>();
}

}  // namespace weir
