// Where wgmma finds an operand in shared memory.
//
// K-major operands (k contiguous; rows are A's m or B's n), 16-bit elements:
//   kNone: 8 x 8 tiles of 128 contiguous bytes (rows of 16 bytes); leading = from a tile to the next 8 k, stride = to
//   the
//          next 8 rows.
//   k128:  rows of 64 elements, 128 bytes, 8 of them in 1024 aligned bytes; byte address bits 4-6 are XORed with bits
//          7-9. stride = to the next 8 rows (1024 when dense); leading is not used. A step of 16 k adds 32 bytes to the
//          address.
// MN-major operands (rows contiguous: the wgmma must be told), a row of memory is one k:
//   kNone: 8 x 8 tiles of 128 contiguous bytes, 16 bytes (8 rows) for each k; leading = to the next 8 k, stride = to
//   the
//          next 8 rows.
//   k128:  64 rows, 128 bytes, for each k, 8 k in 1024 aligned bytes, swizzled as above; stride = to the next 8 k,
//          leading = to the next 64 rows.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace weir::cuda::ptx {

enum class Swizzle : uint32_t { kNone = 0, k128 = 1 };
enum class Major { kK, kMN };

WEIR_HD inline constexpr uint64_t wgmma_descriptor(uint32_t address, int leading_bytes, int stride_bytes,
                                                   Swizzle swizzle) {
  const uint64_t start = (address & 0x3ffffu) >> 4;
  const uint64_t leading = (static_cast<uint32_t>(leading_bytes) & 0x3ffffu) >> 4;
  const uint64_t stride = (static_cast<uint32_t>(stride_bytes) & 0x3ffffu) >> 4;
  return start | leading << 16 | stride << 32 | static_cast<uint64_t>(swizzle) << 62;
}

// The swizzled place of a byte offset in an operand that starts at a multiple of 1024 bytes.
WEIR_HD inline constexpr uint32_t swizzle128(uint32_t offset) { return offset ^ (offset >> 3 & 0x70u); }

}  // namespace weir::cuda::ptx
