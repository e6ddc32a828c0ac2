// Between attention's tensor-core kernels, a file for each size of heads, and the op that launches them.
#pragma once

#include "ops/attention/attention_plan_cuda.cuh"

namespace weir {

struct MmaAttention {
  AttentionArgs args;
  SelectedRows selected;
  AttentionGeometry geometry;
  float scale2 = 0;  // scale * log2(e)
  int64_t slots = 0;
  float* partials = nullptr;  // [slots] of a tile's acc, then m and l of each query
  AttentionPlan* plan = nullptr;
};

struct MmaKernels {
  void (*attend)(const StepView* step, MmaAttention a) = nullptr;
  void (*merge)(const StepView* step, MmaAttention a) = nullptr;  // what units that are pieces have left
  int threads = 0, queries = 0, value_dim = 0, shared_bytes = 0;
  int64_t slot_floats = 0;
  int blocks_per_sm = 1;
};

// With few queries that share a KV head (one row), or many.
MmaKernels mma_kernels_64(bool many);
MmaKernels mma_kernels_128(bool many);
MmaKernels mma_kernels_256(bool many);
MmaKernels mma_kernels_mla(bool many);  // keys of 576, values their first 512

}  // namespace weir
