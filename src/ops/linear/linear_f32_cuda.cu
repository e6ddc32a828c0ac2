// Products of exact weights and FP32 rows (linear.h, "On CUDA"): a warp takes an output, its lanes every 32nd element.
#include "ops/linear/linear_f32.h"

#include "ops/linear/dequant_cuda.cuh"

namespace weir {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = 8;  // for which an element is decoded once

__global__ void __launch_bounds__(32 * kWarps) linear_f32(const __grid_constant__ LinearF32Args args) {
  const int rows = args.rows == RowSet::kAll ? args.step->rows : static_cast<int>(args.step->logit_rows.size());
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const int64_t o = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (first_row >= rows || o >= args.weight.out) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, count = rows - first_row < kRows ? rows - first_row : kRows;
  const float* x = args.x + first_row * args.x_stride;
  float sums[kRows] = {};
  for (int64_t k = lane; k < args.weight.in; k += 32) {
    const float w = weight_value(args.weight, o, k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < count) sums[r] = fmaf(w, x[r * args.x_stride + k], sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sums[r] = cuda::warp_sum(sums[r]);
    if (lane == 0 && r < count) {
      args.y[(first_row + r) * args.y_stride + o] = args.bias != nullptr ? sums[r] + args.bias[o] : sums[r];
    }
  }
}

}  // namespace

void launch_linear_f32(CudaDevice& device, const LinearF32Args& args, int32_t rows) {
  if (rows == 0) return;
  cuda::launch(device,
               {.grid = {(args.weight.out + kWarps - 1) / kWarps, (rows + kRows - 1) / kRows}, .block = 32 * kWarps},
               linear_f32, args);
}

}  // namespace weir
