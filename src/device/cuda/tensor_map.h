// Matrices of BF16 rows in global memory as the copy engine knows them: it brings boxes of 64 columns x some rows to
// shared memory, 128 bytes a row, swizzled (wgmma_descriptor.h: k128). What lies outside the matrix arrives as zeros.
#pragma once

#include "device/cuda/kernel.h"

#ifndef WEIR_CUDA_EMULATED
#include <cuda.h>
#endif

namespace weir::cuda {

inline constexpr int kBoxColumns = 64;

struct Matrix {
  const uint16_t* elements = nullptr;  // at a multiple of 16 bytes
  int64_t rows = 0, columns = 0;
  int64_t stride = 0;  // elements from row to row, a multiple of 8
};

#ifdef WEIR_CUDA_EMULATED

struct TensorMap {
  Matrix matrix;
  int box_rows;
};

inline int map_tensor(TensorMap& map, const Matrix& matrix, int box_rows) {
  map = {matrix, box_rows};
  const bool aligned = reinterpret_cast<uintptr_t>(matrix.elements) % 16 == 0 && matrix.stride % 8 == 0;
  return aligned && box_rows >= 1 && box_rows <= 256 ? cudaSuccess : cudaErrorInvalidValue;
}

#else

using TensorMap = CUtensorMap;

// For boxes of at most 256 rows. An error as launches return it, 0 if none.
inline int map_tensor(TensorMap& map, const Matrix& matrix, int box_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(error == cudaSuccess ? function : nullptr);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(matrix.columns), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t stride_bytes = static_cast<cuuint64_t>(matrix.stride) * 2;
  const cuuint32_t box[2] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint16_t*>(matrix.elements), sizes, &stride_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

#endif

}  // namespace weir::cuda
