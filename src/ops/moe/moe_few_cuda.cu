// Launches of moe_few_cuda.cuh.
#include <algorithm>

#include "base/error.h"
#include "ops/moe/moe_few_cuda.cuh"

namespace weir {
namespace {

FewKernel few_kernel(TileFormat format, bool one_column) {
  for (const auto& kernels : {few_kernel_plain, few_kernel_block, few_kernel_super}) {
    if (const FewKernel kernel = kernels(format, one_column); kernel.kernel != nullptr) return kernel;
  }
  return {};
}

// Blocks of a multiprocessor, and what each has.
struct FewShape {
  int blocks = 0;
  int64_t shared_bytes = 0;  // dynamic
  int32_t row_slots = 0;
};

// Shared memory of a block when there are so many.
int64_t shared_bytes(const CudaDevice& device, int blocks) {
  constexpr int64_t kReserved = 1024, kStatic = 4096;  // of a block
  return ((device.shared_limit() + kReserved) / blocks - kReserved - kStatic) / 128 * 128;
}

// As many blocks as the kernel is made for, or fewer that have room for some rows of this width.
FewShape few_shape(const CudaDevice& device, const FewKernel& few, int64_t width, int32_t parts, int32_t rows) {
  constexpr int32_t kLeastSlots = 4;
  for (int blocks = few.blocks;; --blocks) {
    const int64_t bytes = shared_bytes(device, blocks);
    const int64_t left = bytes - few.ring_bytes - (parts > 1 ? few.warps * kPartBytes : 0);
    const auto slots = static_cast<int32_t>(left / row_stride(width));
    if (blocks == 1 || slots >= std::min(rows, kLeastSlots)) return {blocks, bytes, slots};
  }
}

bool one_column(int32_t wanted_tile_rows) { return wanted_tile_rows <= 8; }

// Parts of a strip: its segments, where there are so few strips that warps would have none.
int32_t parts_of(const CudaDevice& device, const FewKernel& few, bool one, int32_t pairs, const ExpertTiles& side) {
  constexpr int64_t kStripsForParts = 4;  // of a warp, at most
  const int64_t warps = int64_t{few.blocks} * device.sm_count() * few.warps;
  const bool split =
      one && side.segments > 1 && side.segments <= few.warps && int64_t{pairs} * side.strips < kStripsForParts * warps;
  return split ? side.segments : 1;
}

}  // namespace

void allow_few(const CudaDevice& device, const std::string& name, const ExpertTiles& side) {
  for (const bool one : {true, false}) {
    const FewKernel few = few_kernel(side.format, one);
    cuda::allow_shared(few.kernel, shared_bytes(device, 1));
    if (few_shape(device, few, side.width(), 2, 1).row_slots < 1) {
      fail(name, ": rows of ", side.width(), " do not fit into this GPU's shared memory");
    }
  }
}

int32_t few_tile_rows(const CudaDevice& device, int32_t rows, int32_t pairs, const ExpertTiles& side) {
  const bool one = one_column(rows);
  const FewKernel few = few_kernel(side.format, one);
  const int32_t parts = parts_of(device, few, one, pairs, side);
  return std::min(rows, few_shape(device, few, side.width(), parts, rows).row_slots);
}

void multiply_few_pairs(CudaDevice& device, const StepShape& shape, const ExpertProduct& product) {
  const bool one = one_column(shape.wanted_tile_rows);
  const FewKernel few = few_kernel(product.experts.format, one);
  const int32_t parts = parts_of(device, few, one, shape.pairs, product.experts);
  const FewShape fit = few_shape(device, few, product.experts.width(), parts, shape.wanted_tile_rows);
  const int32_t blocks = fit.blocks * device.sm_count();
  cuda::launch(device,
               {.grid = blocks, .block = (few.warps + 1) * 32, .shared_bytes = fit.shared_bytes, .overlap = true},
               few.kernel, product,
               FewLaunch{.row_slots = fit.row_slots,
                         .strips = Divisor(product.experts.strips),
                         .blocks = Divisor(blocks),
                         .parts = Divisor(parts),
                         .part_segments = product.experts.segments / parts},
               device.step());
}

}  // namespace weir
