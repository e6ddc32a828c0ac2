// What the kernels of indexer compute at a time; between indexer.cpp and the kernel sets.
#pragma once

#include <cstdint>

#include "base/step_view.h"
#include "ops/indexer/indexer.h"

namespace weir {

inline constexpr int64_t kIndexerTile = 64;  // positions

struct IndexerTask {
  const IndexerArgs* args;
  PoolView pool;
  const PageId* pages;
  const float* q;        // of the row
  const float* weights;  // of the row, times weight_scale
  float* dots;           // [heads up to a multiple of four, 64]
  float* scores;         // [64]
};

// Scores of positions [first, first + count): first a multiple of 64, count at most 64.
using IndexerKernel = void (*)(const IndexerTask& task, int64_t first, int64_t count);

}  // namespace weir
