// Head products by wgmma. A block has some outputs of one head, 64 for each of its warpgroups: their weights are A and
// stay in shared memory, tiles of x's rows are B and pass through a ring, 128 elements of the inner dimension at a
// time.
#pragma once

#include <type_traits>

#include "device/cuda/ptx.h"
#include "ops/mla/mla_cuda.h"

namespace weir {

inline constexpr int kTileOutputs = 64, kSliceIns = 64;  // of a warpgroup; of a row of shared memory
inline constexpr int kSliceBytes = kTileOutputs * kSliceIns * 2;

// Weights as BF16 [heads, tiles of outputs, slices of inner, planes] with kSliceBytes each, as wgmma wants them. One
// plane, or hi and lo. Outputs and inner are padded with zeros.
struct HeadTiles {
  const std::byte* data = nullptr;
  int32_t tiles = 0;   // of a head
  int32_t slices = 0;  // of a tile
  int32_t planes = 0;

  __host__ __device__ int tile_bytes() const { return slices * planes * kSliceBytes; }
};

struct HeadLaunch {
  // Can x be read, y be written by eights, what lies behind both by fours?
  bool x_vectors = false, y_vectors = false, extra_vectors = false;
  bool one_tile = false;  // of rows, for each block: its weights are used once
};

template <int kRows_, int kWarpgroups_, int kPlanes_>
struct HeadBlock {
  static constexpr int kRows = kRows_, kWarpgroups = kWarpgroups_, kPlanes = kPlanes_;  // rows: at a time
  static constexpr int kThreads = 128 * kWarpgroups;
  static constexpr int kBlocks = kRows < 64 ? 1 : kWarpgroups == 1 ? 5 : 3;  // of a multiprocessor, at least
  static constexpr int kStages = 4, kStageIns = 2 * kSliceIns;
  static constexpr int kStageBytes = kRows * kStageIns * 2;
  static constexpr int kStagedRows = kRows < 16 ? 16 : kRows;
  static constexpr int kStagedBytes = kStagedRows * kTileOutputs * 2;  // results of a warpgroup
};

// Rows of 128 bytes, swizzled as wgmma wants them.
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

__device__ __forceinline__ int row_bytes(RowType type) { return type == RowType::kBf16 ? 2 : 4; }

// Elements [k, k + 8) of a head's part of a row, as BF16, zeros from the inner dimension on.
__device__ __forceinline__ uint4 eight_of(const HeadProduct& p, const std::byte* x, int k) {
  uint32_t v[8];
  for (int i = 0; i < 8; ++i) {
    const bool live = k + i < p.inner;
    if (p.x_type == RowType::kBf16) {
      v[i] = live ? reinterpret_cast<const uint16_t*>(x)[k + i] : 0;
    } else {
      v[i] = live ? cuda::pack_bf16(reinterpret_cast<const float*>(x)[k + i], 0.f) : 0;
    }
  }
  return {v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16};
}

// x's part of a head in the rows from `first` on.
__device__ __forceinline__ const std::byte* rows_of(const HeadProduct& p, int64_t head, int64_t first) {
  return static_cast<const std::byte*>(p.x) + (first * p.x_stride + head * (p.inner + p.extra)) * row_bytes(p.x_type);
}

// A stage: kStageIns elements of T::kRows rows, zeros from `rows` and from the inner dimension on. A thread has one
// chunk of eight of each kStep-th row. Copies are on their way afterwards; where rows have to be rounded, kMostBatch
// loads at a time are waited for.
template <class T, int kMostBatch>
__device__ __forceinline__ void load_stage(const HeadProduct& p, bool vectors, int64_t head, int64_t first,
                                           int64_t rows, int first_in, std::byte* to) {
  constexpr int kStep = T::kThreads / 16, kEach = (T::kRows + kStep - 1) / kStep;
  static_assert(kStep % 8 == 0);  // the swizzle of a thread's rows is the same
  const int row = static_cast<int>(threadIdx.x) / 16, chunk = static_cast<int>(threadIdx.x) % 16;
  if (T::kRows < kStep && row >= T::kRows) return;
  const int k = first_in + chunk * 8;
  const int64_t step = kStep * p.x_stride * row_bytes(p.x_type);
  // Of the thread's rows, those that are there.
  const int left = static_cast<int>(rows - first < T::kRows ? rows - first : T::kRows) - row;
  const int live = k < p.inner ? left : 0;
  const std::byte* x = rows_of(p, head, first + row);
  std::byte* const place = to + chunk / 8 * T::kRows * 128 + chunk_offset(row, chunk % 8);
  if (vectors && p.x_type == RowType::kBf16) {
    const uint32_t address = cuda::ptx::shared_address(place);
    const std::byte* from = x + k * 2;
#pragma unroll
    for (int b = 0; b < kEach; ++b, from += step) {
      const bool there = b * kStep < live;
      cuda::ptx::copy_async16(address + b * kStep * 128, there ? from : static_cast<const std::byte*>(p.x), there);
    }
    return;
  }
  if (vectors) {
    constexpr int kBatch = kEach < kMostBatch ? kEach : kMostBatch;
    const std::byte* from = x + k * 4;
#pragma unroll 1
    for (int begin = 0; begin < kEach; begin += kBatch) {
      float4 v[kBatch][2];
#pragma unroll
      for (int b = 0; b < kBatch; ++b, from += step) {
        const bool there = (begin + b) * kStep < live;
        v[b][0] = there ? reinterpret_cast<const float4*>(from)[0] : float4{};
        v[b][1] = there ? reinterpret_cast<const float4*>(from)[1] : float4{};
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        *reinterpret_cast<uint4*>(place + (begin + b) * kStep * 128) = {
            cuda::pack_bf16(v[b][0].x, v[b][0].y), cuda::pack_bf16(v[b][0].z, v[b][0].w),
            cuda::pack_bf16(v[b][1].x, v[b][1].y), cuda::pack_bf16(v[b][1].z, v[b][1].w)};
      }
    }
    return;
  }
#pragma unroll 1
  for (int b = 0; b < kEach; ++b, x += step) {
    *reinterpret_cast<uint4*>(place + b * kStep * 128) = b * kStep < left ? eight_of(p, x, k) : uint4{};
  }
}

template <int kCount>
struct Elements {
  float v[kCount];

  __device__ __forceinline__ Elements(const std::byte* row, int64_t at, RowType type) {
    if (type == RowType::kBf16) {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(row) + at;
      if constexpr (kCount == 4) {
        const uint2 bits = *reinterpret_cast<const uint2*>(from);
        v[0] = cuda::low_bf16(bits.x), v[1] = cuda::high_bf16(bits.x);
        v[2] = cuda::low_bf16(bits.y), v[3] = cuda::high_bf16(bits.y);
      } else {
        v[0] = cuda::low_bf16(*from);
      }
    } else {
      const float* from = reinterpret_cast<const float*>(row) + at;
      if constexpr (kCount == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      } else {
        v[0] = *from;
      }
    }
  }
  __device__ __forceinline__ void store(std::byte* row, int64_t at, RowType type) const {
    if (type == RowType::kBf16) {
      uint16_t* to = reinterpret_cast<uint16_t*>(row) + at;
      if constexpr (kCount == 4) {
        *reinterpret_cast<uint2*>(to) = {cuda::pack_bf16(v[0], v[1]), cuda::pack_bf16(v[2], v[3])};
      } else {
        *to = static_cast<uint16_t>(cuda::pack_bf16(v[0], 0.f));
      }
    } else {
      float* to = reinterpret_cast<float*>(row) + at;
      if constexpr (kCount == 4) {
        *reinterpret_cast<float4*>(to) = {v[0], v[1], v[2], v[3]};
      } else {
        *to = v[0];
      }
    }
  }
};

// y's part of a head in the rows from `first` on.
__device__ __forceinline__ std::byte* results_of(const HeadProduct& p, int64_t head, int64_t first) {
  return static_cast<std::byte*>(p.y) + (first * p.y_stride + head * (p.outputs + p.extra)) * row_bytes(p.y_type);
}

// What lies behind x goes behind y. The blocks of a head share it.
template <class T, int kCount>
__device__ __forceinline__ void copy_extra(const HeadProduct& p, int64_t head, int64_t first, int64_t rows) {
  const int extra = static_cast<int>(p.extra) / kCount;
  const std::byte* from = rows_of(p, head, first);
  std::byte* to = results_of(p, head, first);
  const int count = static_cast<int>(rows - first < T::kRows ? rows - first : T::kRows) * extra;
  for (int i = blockIdx.y * T::kThreads + threadIdx.x; i < count; i += gridDim.y * T::kThreads) {
    const int64_t row = i / extra, e = i % extra * kCount;
    const Elements<kCount> elements(from, row * p.x_stride + p.inner + e, p.x_type);
    elements.store(to, row * p.y_stride + p.outputs + e, p.y_type);
  }
}

__device__ __forceinline__ uint64_t k_major(uint32_t address) {
  return cuda::ptx::wgmma_descriptor(address, 16, 1024, cuda::ptx::Swizzle::k128);
}

// sum += a stage's part of a warpgroup's product. weights, x: shared addresses of the stage's first slice.
template <class T>
__device__ __forceinline__ void multiply_stage(uint32_t weights, uint32_t x, int slices, float* sum) {
  cuda::ptx::pin<T::kRows / 2>(sum);
  cuda::ptx::wgmma_fence();
#pragma unroll 1
  for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int k = 0; k < kSliceIns / 16; ++k) {
      const uint64_t rows = k_major(x + slice * T::kRows * 128 + k * 32);
      const uint32_t at = weights + slice * T::kPlanes * kSliceBytes + k * 32;
      cuda::ptx::wgmma_bf16_shared<T::kRows>(sum, k_major(at), rows);
      if constexpr (T::kPlanes == 2) cuda::ptx::wgmma_bf16_shared<T::kRows>(sum, k_major(at + kSliceBytes), rows);
    }
  }
  cuda::ptx::wgmma_commit();
}

// A warpgroup's sums, sum[4 j + i] of output 16 warp + lane / 4 + 8 (i / 2) and row 8 j + lane % 4 * 2 + i % 2, to the
// rows of y from `first` on. staged: T::kStagedBytes of its own.
template <class T>
__device__ __forceinline__ void store(const HeadProduct& p, bool vectors, int64_t head, int64_t first, int64_t rows,
                                      int first_output, std::byte* staged, const float* sum) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, thread = threadIdx.x % 128;
  const int live_rows = static_cast<int>(rows - first < T::kRows ? rows - first : T::kRows);
  const int live = static_cast<int>(p.outputs) - first_output;
  std::byte* y = results_of(p, head, first) + first_output * row_bytes(p.y_type);
  if (p.y_type == RowType::kBf16 && vectors) {
    const int barrier = 1 + static_cast<int>(threadIdx.x) / 128;
    cuda::ptx::named_barrier_sync(barrier, 128);  // `staged` has been read: by the products, or the tile before
    const uint32_t row = static_cast<uint32_t>(lane / 16 * 8 + lane % 8);
    const uint32_t to = cuda::ptx::shared_address(staged) + chunk_offset(row, warp * 2 + lane / 8 % 2);
#pragma unroll
    for (int j = 0; j < T::kRows / 8; j += 2) {
      uint32_t r[4] = {};
#pragma unroll
      for (int m = 0; m < (T::kRows == 8 ? 2 : 4); ++m) {
        r[m] = cuda::pack_bf16(sum[4 * j + 2 * m], sum[4 * j + 2 * m + 1]);
      }
      cuda::ptx::store_matrix_x4_transposed(to + j * 1024, r);
    }
    cuda::ptx::named_barrier_sync(barrier, 128);
#pragma unroll
    for (int i = thread; i < T::kRows * 8; i += 128) {
      if (i / 8 >= live_rows || i % 8 * 8 >= live) continue;
      *reinterpret_cast<uint4*>(y + i / 8 * p.y_stride * 2 + i % 8 * 16) =
          *reinterpret_cast<const uint4*>(staged + chunk_offset(i / 8, i % 8));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < T::kRows / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, o = warp * 16 + lane / 4 + i % 4 / 2 * 8;
    if (row >= live_rows || o >= live) continue;
    if (p.y_type == RowType::kBf16) {
      reinterpret_cast<uint16_t*>(y)[row * p.y_stride + o] = static_cast<uint16_t>(cuda::pack_bf16(sum[i], 0.f));
    } else {
      reinterpret_cast<float*>(y)[row * p.y_stride + o] = sum[i];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    product_kernel(const StepView* step, const __grid_constant__ HeadProduct p, const __grid_constant__ HeadTiles w,
                   HeadLaunch launch) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  __shared__ uint64_t weights_full;
  const int64_t head = blockIdx.x;
  const int first_tile = static_cast<int>(blockIdx.y) * T::kWarpgroups, warpgroup = static_cast<int>(threadIdx.x) / 128;
  cuda::ptx::let_next_start();
  if (threadIdx.x == 0) {
    cuda::ptx::mbarrier_init(&weights_full, 1);
    cuda::ptx::mbarrier_fence_init();
    const int tiles = w.tiles - first_tile < T::kWarpgroups ? w.tiles - first_tile : T::kWarpgroups;
    cuda::ptx::mbarrier_arrive_expect(&weights_full, tiles * w.tile_bytes());
    for (int t = 0; t < tiles; ++t) {
      cuda::ptx::bulk_load(shared + t * w.tile_bytes(), w.data + (head * w.tiles + first_tile + t) * w.tile_bytes(),
                           w.tile_bytes(), &weights_full);
    }
  }
  // The step is staged before the first of its launches.
  const int64_t rows = step->rows, row_step = static_cast<int64_t>(gridDim.z) * T::kRows;
  __syncthreads();
  std::byte* const own = shared + warpgroup * w.tile_bytes();
  std::byte* const behind = shared + T::kWarpgroups * w.tile_bytes();
  // Weights that are not needed any more make room for results.
  std::byte* const staged = launch.one_tile ? own : behind + warpgroup * T::kStagedBytes;
  std::byte* const ring = behind + (launch.one_tile ? 0 : T::kWarpgroups * T::kStagedBytes);
  const int parts = (w.slices + 1) / 2;  // stages of a tile of rows
  const int64_t first_row = static_cast<int64_t>(blockIdx.z) * T::kRows;
  const int count = first_row < rows ? static_cast<int>((rows - first_row + row_step - 1) / row_step) * parts : 0;
  const auto load = [&]<int kMostBatch>(int s, std::integral_constant<int, kMostBatch>) {
    if (s < count) {
      load_stage<T, kMostBatch>(p, launch.x_vectors, head, first_row + s / parts * row_step, rows,
                                s % parts * T::kStageIns, ring + s % T::kStages * T::kStageBytes);
    }
    cuda::ptx::commit_copies();
  };
  cuda::ptx::wait_for_previous();
#pragma unroll 1
  for (int s = 0; s < T::kStages; ++s) load(s, std::integral_constant<int, 4>{});
  for (int64_t first = first_row; first < rows && p.extra > 0; first += row_step) {
    if (launch.extra_vectors) {
      copy_extra<T, 4>(p, head, first, rows);
    } else {
      copy_extra<T, 1>(p, head, first, rows);
    }
  }
  const uint32_t weights = cuda::ptx::shared_address(own);
  float sum[T::kRows / 2];
  cuda::ptx::mbarrier_wait(&weights_full, 0);
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    // At most the stages behind this one are still under way; only the first time all have been asked for by now.
    if (s == 0) {
      cuda::ptx::wait_copies<T::kStages - 1>();
    } else {
      cuda::ptx::wait_copies<T::kStages - 2>();
    }
    cuda::ptx::fence_async_shared();
    __syncthreads();
    const int part = s % parts, slices = w.slices - 2 * part < 2 ? 1 : 2;
    if (part == 0) {
#pragma unroll
      for (float& v : sum) v = 0;
    }
    multiply_stage<T>(weights + 2 * part * T::kPlanes * kSliceBytes,
                      cuda::ptx::shared_address(ring + s % T::kStages * T::kStageBytes), slices, sum);
    // Where the products ended before the barrier.
    if (s > 0) load(s - 1 + T::kStages, std::integral_constant<int, 2>{});
    cuda::ptx::wgmma_wait<0>();
    cuda::ptx::pin<T::kRows / 2>(sum);
    if (part == parts - 1) {
      store<T>(p, launch.y_vectors, head, first_row + s / parts * row_step, rows,
               (first_tile + warpgroup) * kTileOutputs, staged, sum);
    }
  }
}

}  // namespace weir
