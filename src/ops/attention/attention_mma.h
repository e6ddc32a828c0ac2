// Between attention's tensor-core kernels, a file for each size of heads, and the op that launches them.
#pragma once

#include "ops/attention/attention_plan_cuda.cuh"

namespace weir {

// Where a unit of a tile of queries is left in memory: acc [queries, dims], then m and l of each query, once for each
// of the parts of a block that have some of the dimensions.
struct PieceSlot {
  int32_t queries = 0, dims = 0, parts = 1;

  WEIR_HD int64_t floats() const { return static_cast<int64_t>(queries) * (dims + 2 * parts); }
};

// Pieces merged as a tree: nodes that wait for their right siblings, one of each level, in a slot each.
inline constexpr int kTreeLevels = 7;

// Of latents: the weights that 64 positions have for 64 queries, and what they are relative to.
inline constexpr int kTileWeightBytes = 64 * (64 * 2 + 4);
// Pages of a piece whose weights are made first, or positions of a list.
inline constexpr int kMostSplitEntries = 2048;

struct MmaAttention {
  AttentionArgs args;
  SelectedRows selected;
  AttentionGeometry geometry;
  float scale2 = 0;         // scale * log2(e)
  bool vectors = false;     // heads of q begin at multiples of 16 bytes
  bool out_chunks = false;  // out is BF16, heads at multiples of 16 bytes
  bool out_pairs = false;   // heads of out at multiples of two elements
  PieceSlot slot;
  int64_t slots = 0;
  float* partials = nullptr;          // [slots]
  float* nodes = nullptr;             // [blocks, kTreeLevels] slots, of kernels that merge trees
  MergeRow* merge_rows = nullptr;     // [rows]
  std::byte* tile_weights = nullptr;  // [tiles], of kernels that make all weights first
};

using AttentionKernel = void (*)(const StepView* step, MmaAttention a);

struct MmaKernels {
  AttentionKernel attend = nullptr;
  AttentionKernel attend_single = nullptr;  // of a step in which every span has one row, if there is such a one
  AttentionKernel merge = nullptr;          // a block for each row and head, a thread for four dimensions
  bool tree = false;                        // pieces are merged as a tree, not one after the other
  int threads = 0, shared_bytes = 0, blocks_per_sm = 1;
  int workers = 1;  // of a block, which take units side by side
  PieceSlot slot;
  // For steps of few rows with long pieces, if there are such: the weights of all tiles, then sums of parts of pieces.
  AttentionKernel weigh = nullptr, add = nullptr;
  int add_threads = 0, add_shared_bytes = 0;
};

// With few queries that share a KV head (one row), or many.
MmaKernels mma_kernels_64(bool many);
MmaKernels mma_kernels_128(bool many);
MmaKernels mma_kernels_256(bool many);
void add_split_kernels(MmaKernels& latent);
MmaKernels latent_kernels();  // keys of 576, values their first 512

// Merges pieces in ascending order.
AttentionKernel merge_ascending();

}  // namespace weir
