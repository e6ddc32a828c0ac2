// Where the state of a head lies in pages and anchors (kda_layer.h), and the block of a chunk that prep hands to span.
#pragma once

#include <cstdint>

namespace weir::kda {

inline constexpr int kDim = 128;    // key channels = value columns
inline constexpr int kChunk = 16;   // rows
inline constexpr int kHistory = 3;  // earlier rows that a convolution reads

// A head in a journal page.
inline constexpr int kRowBytes = kDim * 2;
inline constexpr int kUpdates = kChunk * kRowBytes;                // w, after kn or k
inline constexpr int kDecays = kUpdates + kChunk * kRowBytes;      // G
inline constexpr int kInputs = kDecays + kChunk * kDim * 4;        // of the convolutions
inline constexpr int kInverse = kInputs + 3 * kChunk * kRowBytes;  // T
inline constexpr int kPageHeadBytes = kInverse + kChunk * kChunk * 4;

// A head in an anchor.
inline constexpr int kPlaneBytes = kDim * kDim * 2;
inline constexpr int kWindow = 2 * kPlaneBytes;
inline constexpr int kAnchorHeadBytes = kWindow + 3 * kHistory * kRowBytes;
static_assert(kPageHeadBytes % 64 == 0 && kAnchorHeadBytes % 64 == 0);

// A chunk's block, as the serial kernel's shared memory wants it: one bulk copy.
//   [kt; qt]: 32 rows of 128 places, two tiles of 64 places with the 128-byte swizzle (row r of a tile: 128 bytes)
//   kd transposed, 128 channels x 16 rows; T and A T, 16 x 16: all in 8 x 8 core matrices of 128 bytes
//   2^G_15; beta
inline constexpr int kBlockOperands = 0;
inline constexpr int kBlockCommit = 8192;
inline constexpr int kBlockInverse = kBlockCommit + 4096;
inline constexpr int kBlockOutput = kBlockInverse + 512;
inline constexpr int kBlockDecay = kBlockOutput + 512;
inline constexpr int kBlockBeta = kBlockDecay + 512;
inline constexpr int kBlockBytes = kBlockBeta + 128;
static_assert(kBlockBytes % 128 == 0);

}  // namespace weir::kda
