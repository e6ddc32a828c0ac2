// Positions of a sequence and its chunks of 16, which pages and anchors are made for.
#pragma once

#include <cstdint>

#include "base/step_view.h"

namespace weir {

constexpr int64_t chunk_of(int64_t position) { return position / kPagePositions; }
constexpr int64_t floor16(int64_t position) { return position / kPagePositions * kPagePositions; }
// Chunks that so many positions take, the last one whole or not.
constexpr int64_t chunks_for(int64_t positions) { return (positions + kPagePositions - 1) / kPagePositions; }

}  // namespace weir
