// Between attention's tensor-core kernels, a file for each size of heads, and the op that launches them.
#pragma once

#include "ops/attention/attention_plan_cuda.cuh"

namespace weir {

inline constexpr int kKeyTile = 64;  // positions

// Where a piece of a tile of queries is left in memory: acc [queries, dims], then m and l of each query.
struct PieceSlot {
  int32_t queries = 0, dims = 0;

  WEIR_HD int64_t floats() const { return static_cast<int64_t>(queries) * (dims + 2); }
};

struct MmaAttention {
  AttentionArgs args;
  SelectedRows selected;
  AttentionGeometry geometry;
  float scale2 = 0;      // scale * log2(e)
  bool vectors = false;  // heads of q begin at multiples of 16 bytes
  PieceSlot slot;
  int64_t slots = 0;
  float* partials = nullptr;       // [slots]
  MergeRow* merge_rows = nullptr;  // [rows]
};

// A unit as the threads see it that compute it.
struct AttentionWork {
  __device__ AttentionWork(const MmaAttention& a, const AttentionUnit& unit)
      : of(unit),
        kv_head(unit.tile / a.geometry.head_groups),
        first_head(kv_head * a.geometry.q_per_kv + unit.tile % a.geometry.head_groups * a.geometry.tile_heads),
        heads(min(a.geometry.tile_heads, (kv_head + 1) * a.geometry.q_per_kv - first_head)),
        count(unit.block.rows * heads),
        first(max(static_cast<int>(first_visible(unit.block.position, a.args.window)),
                  unit.first_piece * unit.block.piece)),
        last(min(unit.block.position + unit.block.rows, (unit.first_piece + unit.pieces) * unit.block.piece) - 1) {}

  __device__ int piece() const { return of.block.piece; }
  __device__ int first_tile() const { return first / kKeyTile * kKeyTile; }
  // Of the tile at this position:
  __device__ bool starts_piece(int tile) const { return tile == first_tile() || (tile & (piece() - 1)) == 0; }
  __device__ bool ends_piece(int tile) const { return is_last(tile) || ((tile + kKeyTile) & (piece() - 1)) == 0; }
  __device__ bool in_first_piece(int tile) const { return tile < (of.first_piece + 1) * piece(); }
  __device__ bool is_last(int tile) const { return tile + kKeyTile > last; }

  AttentionUnit of;
  int kv_head, first_head, heads;
  int count;        // queries
  int first, last;  // positions
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
