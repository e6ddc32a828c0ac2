// What attention's kernels compute at a time; between attention.cpp and the kernel sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/step_view.h"
#include "ops/attention/attention.h"

namespace weir {

inline constexpr int64_t kAttentionTile = 64;     // positions
inline constexpr int64_t kAttentionQueries = 32;  // most (row, head) pairs of a task; a multiple of four

// Buffers of a task, in its thread's scratch. `queries` counts padded (row, head) pairs; dimensions are padded to
// sixteen floats.
struct AttentionScratch {
  float* q;          // [queries, key_dim]
  float* scores;     // [queries, 64]: scores, then weights, of one tile
  float* acc;        // [2, queries, value_dim]: the first piece with all those merged into it; the piece in work
  float* max_sum;    // [2, 2, queries]: m and l of both
  float* scale;      // [queries]: what a tile multiplies the accumulators with
  int64_t* present;  // [queries]: positions of the tile that the query sees
  float* keys;       // [64, key_dim]: a tile widened to FP32
  float* values;     // [64, value_dim]; MLA: `keys`
};

// The rows of a block (consecutive rows of one span with the same piece size) times the heads of a group (all reading
// the same KV head), over a range of pieces. Query i is row i / heads, head i % heads.
struct AttentionTask {
  const AttentionArgs* args;
  PoolView key_pool;
  PoolView value_pool;
  const PageId* key_pages;
  const PageId* value_pages;
  int64_t row;  // the first, in the batch
  int64_t rows;
  int64_t position;  // of the first row
  int64_t piece;     // positions
  int64_t head;      // the first
  int64_t heads;
  bool shared;  // values are the beginnings of the keys
  int64_t first_piece;
  int64_t end_piece;
  // Null: the range is all pieces; merges them and writes `out`. Else the range is one piece, which is left here:
  // [queries] of {value_dim padded to sixteen: acc; sixteen: m, l}.
  float* partial;
  AttentionScratch scratch;
};

inline constexpr int64_t padded16(int64_t n) { return (n + 15) / 16 * 16; }

struct AttentionKernel {
  void (*pieces)(const AttentionTask& task);
  // Merges what `pieces` left for queries [first, end), in place: piece i at partials + i * piece_stride; writes `out`.
  void (*merge)(const AttentionTask& task, float* partials, int64_t piece_stride, int64_t first, int64_t end);
};

}  // namespace weir
