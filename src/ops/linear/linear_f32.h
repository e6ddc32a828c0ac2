// Products of `--activations f32` on the GPU (linear.h, "On CUDA").
#pragma once

#include "base/step_view.h"
#include "device/cuda_device.h"
#include "ops/linear/linear.h"

namespace weir {

struct LinearF32Args {
  WeightView weight;  // on the device
  const float* bias = nullptr;
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  const StepView* step = nullptr;
  RowSet rows = RowSet::kAll;
};

// Queues the product for at most `rows` rows.
void launch_linear_f32(CudaDevice& device, const LinearF32Args& args, int32_t rows);

}  // namespace weir
