// What a warp of the serial kernel does with its 16 value columns of a chunk's rows. Lane 4 g + c has the rows 2 c,
// 2 c + 1, 8 + 2 c, 9 + 2 c of the columns g and g + 8, as the tensor core leaves them.
#pragma once

#include "ops/gdn_layer/gdn_cuda.cuh"

namespace weir::gdn {

// From the lane's four rows of the columns g and g + 8 to all rows of one of them, g + 8 (c % 2): the lanes of a quad
// exchange columns, then rows.
__device__ __forceinline__ void gather_column(float* x, const float (*a)[2], int c) {
  const bool odd = c % 2 != 0, upper = c / 2 != 0;
  float pair[8];  // rows 8 h + 4 (c / 2) + m at 4 h + m
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float keep = odd ? a[r][1] : a[r][0];
    const float other = __shfl_xor_sync(kAllLanes, odd ? a[r][0] : a[r][1], 1);
    pair[r / 2 * 4 + r % 2] = odd ? other : keep;
    pair[r / 2 * 4 + 2 + r % 2] = odd ? keep : other;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float other = __shfl_xor_sync(kAllLanes, pair[i], 2);
    x[i / 4 * 8 + i % 4] = upper ? other : pair[i];
    x[i / 4 * 8 + 4 + i % 4] = upper ? pair[i] : other;
  }
}

// Forward substitution in one column: x becomes u, rounded. pairs: Lb [j][i].
__device__ __forceinline__ void substitute(float* x, const float* pairs) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    x[j] = cuda::round_bf16(x[j]);
#pragma unroll
    for (int part = (j + 1) / 4; part < 4; ++part) {
      const float4 l = *reinterpret_cast<const float4*>(pairs + j * kChunk + 4 * part);
      if (4 * part > j) x[4 * part] = fmaf(-l.x, x[j], x[4 * part]);
      if (4 * part + 1 > j) x[4 * part + 1] = fmaf(-l.y, x[j], x[4 * part + 1]);
      if (4 * part + 2 > j) x[4 * part + 2] = fmaf(-l.z, x[j], x[4 * part + 2]);
      if (4 * part + 3 > j) x[4 * part + 3] = fmaf(-l.w, x[j], x[4 * part + 3]);
    }
  }
}

// Back to operands: of the lane's rows, 2 c and 2 c + 1 of the columns g and g + 8, then the same 8 rows on.
__device__ __forceinline__ void scatter_column(uint32_t* u, const float* x, int c) {
  uint32_t rows[8];  // 2 m, 2 m + 1
#pragma unroll
  for (int m = 0; m < 8; ++m) rows[m] = __byte_perm(__float_as_uint(x[2 * m]), __float_as_uint(x[2 * m + 1]), 0x7632);
  const bool odd = c % 2 != 0, upper = c / 2 != 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t* quad = rows + 4 * half;
    const uint32_t even_rows = upper ? quad[2] : quad[0], odd_rows = upper ? quad[3] : quad[1];
    const uint32_t own = odd ? odd_rows : even_rows;
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? even_rows : odd_rows, 1);
    u[2 * half] = odd ? other : own;
    u[2 * half + 1] = odd ? own : other;
  }
}

// kda::column_squares of four rows at once; row 2 (g % 2) + g / 2 % 2 in lane 4 g + c.
__device__ __forceinline__ float fold_squares(const float* x, int g) {
  const bool odd = g % 2 != 0, upper = g / 2 % 2 != 0;
  float pair[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    pair[i] = (odd ? x[2 + i] : x[i]) + __shfl_xor_sync(kAllLanes, odd ? x[i] : x[2 + i], 4);
  }
  const float sum = (upper ? pair[1] : pair[0]) + __shfl_xor_sync(kAllLanes, upper ? pair[0] : pair[1], 8);
  return sum + __shfl_xor_sync(kAllLanes, sum, 16);
}

}  // namespace weir::gdn
