// Between attention's CUDA kernels and the ops that launch them: attention and sparse_attention.
#pragma once

#include <memory>
#include <string>

#include "base/host_device.h"
#include "device/cuda_device.h"
#include "ops/attention/attention.h"

namespace weir {

// Rows that see a list of positions instead of all: row r sees list[r * top_k ...], count[r] of them, ascending.
struct SelectedRows {
  const int32_t* list = nullptr;
  const int32_t* count = nullptr;
  int64_t top_k = 0;

  WEIR_HD const int32_t* of(int64_t row) const { return list != nullptr ? list + row * top_k : nullptr; }
};

WEIR_HD inline int64_t state_bytes(StateDtype dtype) { return dtype == StateDtype::kF32 ? 4 : 2; }

// FP32. Grids depend on the bounds' rows alone.
void prepare_plain_attention(const AttentionArgs& args);
void launch_plain_attention(CudaDevice& device, const StepBounds& bounds, const AttentionArgs& args,
                            const SelectedRows& selected);

// Attention of either kind: args.sinks are on the device already.
std::unique_ptr<BoundOp> make_cuda_attention(CudaDevice& device, std::string name, const AttentionArgs& args,
                                             const SelectedRows& selected);

}  // namespace weir
