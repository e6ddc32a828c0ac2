// What attention's kernels compute at a time; between attention.cpp and the kernel sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/step_view.h"
#include "ops/attention/attention.h"

namespace weir {

inline constexpr int64_t kAttentionTile = 64;  // positions

// Most queries of a task, a multiple of sixteen. A tile of K and V is widened to FP32 and fetched from L2 once for all
// of them; their accumulators (64 x value_dim, twice) must stay in L2 as well.
inline constexpr int64_t kAttentionQueries = 64;

// Buffers of a task, in its thread's scratch; dimensions are padded to sixteen floats.
struct AttentionScratch {
  float* q;           // [queries, key_dim]
  float* scores;      // [queries, 64]: scores, then weights, of one tile
  float* acc;         // [2, queries, value_dim]: the first piece with all those merged into it; the piece in work
  float* max_sum;     // [2, 2, queries]: m and l of both
  float* next;        // [2, queries]: a tile's new m, and the sum of its weights
  float* scale;       // [queries]: what a tile multiplies the accumulators with
  int64_t* position;  // [queries]: of the query's row
  int64_t* from;      // [queries]: the positions of the tile that the query sees: [from, present), may be empty
  int64_t* present;   // [queries]
  float* wide;        // [64, larger of key_dim and value_dim]: a tile's keys or values in FP32
};

// Rows times heads over a range of pieces. The rows are consecutive rows of one span with the same piece size; the
// heads are `heads` consecutive ones of each of `kv_heads` consecutive KV heads. With more than one KV head those are
// all.
//
// Queries are numbered KV head by KV head, row by row, head by head; each KV head has `per_kv` of them: rows * heads,
// and then, up to 2 or a multiple of four, the last one repeated.
struct AttentionTask {
  const AttentionArgs* args;
  PoolView key_pool;
  PoolView value_pool;
  const PageId* key_pages;
  const PageId* value_pages;
  int64_t row;  // the first, in the batch
  int64_t rows;
  int64_t position;  // of the first row
  int64_t visible;   // the first position that the first row sees
  int64_t piece;     // positions
  int64_t kv_head;   // the first
  int64_t kv_heads;
  int64_t head;    // the first
  int64_t heads;   // of each KV head
  int64_t per_kv;  // queries
  bool shared;     // values are the beginnings of the keys
  int64_t first_piece;
  int64_t end_piece;
  // Null: the range is all pieces; merges them and writes `out`. Else the range is one piece, which is left here:
  // [queries] of {value_dim padded to sixteen: acc; sixteen: m, l}.
  float* partial;
  AttentionScratch scratch;
};

struct AttentionKernel {
  void (*pieces)(const AttentionTask& task);
  // Merges, in place, what `pieces` left for queries [first, end), piece task.first_piece + i at partials +
  // i * piece_stride; writes `out`.
  void (*merge)(const AttentionTask& task, float* partials, int64_t piece_stride, int64_t first, int64_t end);
};

}  // namespace weir
