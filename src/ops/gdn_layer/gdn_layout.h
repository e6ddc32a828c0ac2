// Where the parts of the state lie in pages and anchors (gdn_layer.h), and what prep hands to span.
#pragma once

#include "ops/kda_layer/kda_layout.h"

namespace weir::gdn {

using kda::kChunk;
using kda::kDim;
using kda::kHistory;
using kda::kPlaneBytes;
using kda::kRowBytes;

// A key head in a journal page: k, then the inputs of q and k.
inline constexpr int kKeyInputs = kChunk * kRowBytes;
inline constexpr int kKeyPageBytes = 3 * kChunk * kRowBytes;
// A head in a journal page, after all key heads: w, the inputs of v, G, T.
inline constexpr int kValueInputs = kChunk * kRowBytes;
inline constexpr int kDecays = 2 * kChunk * kRowBytes;
inline constexpr int kInverse = kDecays + kChunk * 4;
inline constexpr int kValuePageBytes = kInverse + kChunk * kChunk * 4;

// A head in an anchor: planes, then v's window; a key head, after all heads: the windows of q and k.
inline constexpr int kWindow = 2 * kPlaneBytes;
inline constexpr int kValueAnchorBytes = kWindow + kHistory * kRowBytes;
inline constexpr int kKeyAnchorBytes = 2 * kHistory * kRowBytes;
static_assert(kKeyPageBytes % 64 == 0 && kValuePageBytes % 64 == 0 && kValueAnchorBytes % 64 == 0);

// Of a chunk and key head: [k; q], 32 rows of 128 channels, two tiles of 64 channels with the 128-byte swizzle.
inline constexpr int kKeyTile = 4096;
inline constexpr int kQueries = kChunk * 128;  // in a tile
inline constexpr int kKeyBlockBytes = 2 * kKeyTile;
// Of a chunk and head: T and A T, 16 x 16 in core matrices of 8 x 8; e_i, exp(G_15 - G_j), beta, exp(G_15), [16] each.
inline constexpr int kOutputs = kChunk * kChunk * 2;
inline constexpr int kScales = kOutputs + kChunk * kChunk * 2;
inline constexpr int kCommits = kScales + kChunk * 4;
inline constexpr int kBetas = kCommits + kChunk * 4;
inline constexpr int kDecay = kBetas + kChunk * 4;
inline constexpr int kValueBlockBytes = kDecay + kChunk * 4;
static_assert(kValueBlockBytes % 128 == 0);

}  // namespace weir::gdn
