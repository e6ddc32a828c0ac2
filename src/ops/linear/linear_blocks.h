// Block sizes of the kernels for many rows, shared by all instruction sets because they size the scratch. AVX2 uses
// half of kDepth and kRows.
#pragma once

#include <cstdint>

namespace weir::linear_blocks {

// Weights are expanded to FP32 for kPanelOuts outputs x kDepth elements at a time: 32 KiB, which stays in L1 while the
// rows of x stream past.
inline constexpr int64_t kPanelOuts = 8;
inline constexpr int64_t kDepth = 1024;
// Between blocks of depth the sixteen sums of kRows x kOuts results wait in scratch (384 KiB), beside the kRows x
// kDepth elements of x in use (384 KiB): both in L2.
inline constexpr int64_t kOuts = 64;
inline constexpr int64_t kRows = 96;

// Rows of the panel are one cache line longer than kDepth, so that they do not all fall into the same cache sets.
inline constexpr int64_t kPanelStride = kDepth + 16;
inline constexpr int64_t kPanelBytes = kPanelOuts * kPanelStride * 4;
inline constexpr int64_t kSumsBytes = kRows * kOuts * 16 * 4;
inline constexpr int64_t kScratchBytes = kPanelBytes + kSumsBytes;

// Integer products: outputs side by side at most (AVX2: 8), a panel of codes and the sums of 96 rows x 32 outputs x 8
// lanes.
inline constexpr int64_t kCodedPanelOuts = 32;
inline constexpr int64_t kIntScratchBytes = (28 + 96 + 18) * 1024;
static_assert(kIntScratchBytes <= kScratchBytes);

}  // namespace weir::linear_blocks
