// What the files that launch the kernels of linear_multiply.h share.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/linear/linear_kernels.h"

namespace weir {

inline constexpr int64_t kReservedShared = 1024;   // of shared memory, by the system for each block
inline constexpr int64_t kLeastShared = 77 << 10;  // keeps three blocks off a multiprocessor

// Of x, as parts follow each other.
int different_x(const MultiplyArgs& args);
// Deals places out to parts for blocks of so many strips.
void place_parts(MultiplyArgs& args, int block_strips);
// x of each part in boxes of so many rows, rounded into the workspace where need be. False: an error, which the device
// has.
bool map_rows(CudaDevice& device, const MultiplyArgs& args, std::byte* workspace, int32_t rows, int32_t box_rows,
              WideX& maps);

// --- packed weights, up to 64 rows (linear_packed_cuda.cu)

void prepare_packed(CudaDevice& device, TileFormat format);
// False: the other kernels do it sooner.
bool launch_packed(CudaDevice& device, TileFormat format, const MultiplyArgs& args, std::byte* workspace, int32_t rows);

}  // namespace weir
