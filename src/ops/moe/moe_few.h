// The kernels of moe_few_cuda.cuh, by what tiles hold.
#pragma once

#include <cstdint>

#include "ops/linear/linear_tiles.h"

namespace weir {

struct ExpertProduct;
struct FewLaunch;
struct StepView;

struct FewKernel {
  void (*kernel)(ExpertProduct, FewLaunch, const StepView*) = nullptr;
  int warps = 0;        // that multiply; one more brings rows
  int blocks = 0;       // of a multiprocessor
  int stage_tiles = 0;  // tiles of a stage, at most
  int ring_tiles = 0;   // of a warp's ring, about
};

// For tiles of up to 8 pairs, or up to 32.
FewKernel few_kernel_plain(TileFormat format, bool one_column);
FewKernel few_kernel_block(TileFormat format, bool one_column);
FewKernel few_kernel_super(TileFormat format, bool one_column);

}  // namespace weir
