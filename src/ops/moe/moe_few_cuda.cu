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

int32_t few_tile_rows(const CudaDevice& device, int32_t rows, const ExpertTiles& side) {
  const FewKernel few = few_kernel(side.format, one_column(rows));
  return std::min(rows, few_shape(device, few, side.width(), 2, rows).row_slots);
}

void multiply_few_pairs(CudaDevice& device, const StepShape& shape, const ExpertProduct& product) {
  constexpr int64_t kStripsForParts = 4;  // of a warp, at most
  const bool one = one_column(shape.wanted_tile_rows);
  const FewKernel few = few_kernel(product.experts.format, one);
  const int32_t segments = product.experts.segments;
  const int64_t warps = int64_t{few.blocks} * device.sm_count() * few.warps;
  const bool split = one && segments > 1 && segments <= few.warps &&
                     int64_t{shape.pairs} * product.experts.strips < kStripsForParts * warps;
  const int32_t parts = split ? segments : 1;
  const FewShape fit = few_shape(device, few, product.experts.width(), parts, shape.wanted_tile_rows);
  const int32_t blocks = fit.blocks * device.sm_count();
  cuda::launch(device,
               {.grid = blocks, .block = (few.warps + 1) * 32, .shared_bytes = fit.shared_bytes, .overlap = true},
               few.kernel, product,
               FewLaunch{.row_slots = fit.row_slots,
                         .strips = Divisor(product.experts.strips),
                         .blocks = Divisor(blocks),
                         .parts = Divisor(parts),
                         .part_segments = segments / parts,
                         .ahead_part = static_cast<int32_t>((product.ahead_bytes / blocks + 16) / 16 * 16)},
               device.step());
}

}  // namespace weir
