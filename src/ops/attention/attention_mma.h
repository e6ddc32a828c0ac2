// Between attention's tensor-core kernels, a file for each size of heads, and the op that launches them.
#pragma once

#include "ops/attention/attention_plan_cuda.cuh"

namespace weir {

// Where a piece of a tile of queries is left in memory: acc [queries, dims], then m and l of each query.
struct PieceSlot {
  int32_t queries = 0, dims = 0;

  WEIR_HD int64_t floats() const { return static_cast<int64_t>(queries) * (dims + 2); }
};

struct MmaAttention {
  AttentionArgs args;
  SelectedRows selected;
  AttentionGeometry geometry;
  float scale2 = 0;        // scale * log2(e)
  bool vectors = false;    // heads of q begin at multiples of 16 bytes
  bool out_pairs = false;  // heads of out at multiples of two elements
  PieceSlot slot;
  int64_t slots = 0;
  float* partials = nullptr;       // [slots]
  MergeRow* merge_rows = nullptr;  // [rows]
};

struct MmaKernels {
  void (*attend)(const StepView* step, MmaAttention a) = nullptr;
  int threads = 0, shared_bytes = 0, blocks_per_sm = 1;
  int workers = 1;  // of a block, which take units side by side
  PieceSlot slot;
};

// With few queries that share a KV head (one row), or many.
MmaKernels mma_kernels_64(bool many);
MmaKernels mma_kernels_128(bool many);
MmaKernels mma_kernels_256(bool many);
MmaKernels latent_kernels();  // keys of 576, values their first 512

// Merges what units that are pieces have left.
void launch_merge(CudaDevice& device, const StepBounds& bounds, const MmaAttention& attention);

}  // namespace weir
