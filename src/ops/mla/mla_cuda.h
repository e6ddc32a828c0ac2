// The two products of mla on CUDA as one: y_h = W_h x_h for every head, W_h [outputs, inner].
#pragma once

#include "device/cuda_device.h"
#include "ops/cuda_op.h"
#include "ops/mla/mla.h"

namespace weir {

struct HeadProduct {
  WeightView weight;
  // Row o, column i of head h's matrix: element (h * head_rows + first_row + o, i) of `weight`, or where it lies
  // transposed, (h * head_rows + first_row + i, o).
  int64_t head_rows = 0;
  int64_t first_row = 0;
  bool transposed = false;
  int64_t heads = 0;
  int64_t outputs = 0;
  int64_t inner = 0;
  int64_t extra = 0;        // elements of x behind `inner`, copied behind the outputs
  const void* x = nullptr;  // elements of x_type
  int64_t x_stride = 0;
  void* y = nullptr;  // elements of y_type
  int64_t y_stride = 0;
  RowType x_type = RowType::kF32;  // kBf16: on tensor cores
  RowType y_type = RowType::kF32;  // likewise

  Cost cost(int32_t rows) const {
    const int64_t elements = heads * outputs * inner;
    return {.weight_bytes = elements * weight.row_bytes / weight.in,
            .flops = 2. * static_cast<double>(rows) * static_cast<double>(elements)};
  }
};

// Tensor cores: weights are laid out anew at bind time.
std::unique_ptr<CudaOp> make_head_product_bf16(CudaDevice& device, std::string name, const HeadProduct& product);

}  // namespace weir
