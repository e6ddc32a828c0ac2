// Sums of a strip of outputs as the tensor cores leave them, and their way to y.
#pragma once

#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_operand_cuda.cuh"

namespace weir {

// A lane's: [4 j + i] is of output lane / 4 + 8 (i / 2) of the warp's strip and row 8 j + lane % 4 * 2 + i % 2.
template <int kRows>
using StripSums = float[kRows / 2];

template <int kRows>
__device__ inline void store_sums(const MultiplyArgs& args, int place, int first_row, int rows,
                                  const StripSums<kRows>& sums) {
  const LinearPart& part = part_of(args, place);
  const int lane = lane_index();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int o = (place - part.first_place) * static_cast<int>(kTileOuts) + lane / 4 + 8 * half;
    if (o >= part.out) return;
    const float bias = part.bias != nullptr ? part.bias[o] : 0;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int row = first_row + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (row >= rows) continue;
      const float sum = sums[i / 2 * 4 + 2 * half + i % 2];
      store_output(part, row, o, part.bias != nullptr ? sum + bias : sum);
    }
  }
}

}  // namespace weir
