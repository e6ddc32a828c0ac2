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
  int32_t parts = 0;  // of a strip
  int32_t stages = 0, stage_tiles = 0;
};

// Shared memory of a block when there are so many.
int64_t shared_bytes(const CudaDevice& device, int blocks) {
  constexpr int64_t kReserved = 1024, kStatic = 4096;  // of a block
  return ((device.shared_limit() + kReserved) / blocks - kReserved - kStatic) / 128 * 128;
}

bool one_column(int32_t wanted_tile_rows) { return wanted_tile_rows <= 8; }

// Warps that multiply.
int64_t warps_of(const CudaDevice& device, const FewKernel& few) {
  return int64_t{few.blocks} * device.sm_count() * few.warps;
}

// Parts of a strip: its segments, where there are so few strips that warps would have none.
int32_t parts_of(const CudaDevice& device, const FewKernel& few, bool one, int32_t pairs, const ExpertTiles& side) {
  constexpr int64_t kStripsForParts = 4;  // of a warp, at most
  const bool split = one && side.segments > 1 && side.segments <= few.warps &&
                     int64_t{pairs} * side.strips < kStripsForParts * warps_of(device, few);
  return split ? side.segments : 1;
}

// A segment has as few stages as it can, of about the same length. With next to nothing for each warp to do, all
// weights would be asked for at once and every warp's first come late: stages are short then, and few.
void choose_ring(const CudaDevice& device, const FewKernel& few, int32_t pairs, const ExpertTiles& side,
                 FewShape& shape) {
  constexpr int kPartsForLong = 2;  // of a warp, more
  constexpr int kShortStageTiles = 4, kShortRingTiles = 8;
  int most = few.stage_tiles, ring = few.ring_tiles;
  if (int64_t{pairs} * side.strips * shape.parts <= kPartsForLong * warps_of(device, few)) {
    most = std::min(most, kShortStageTiles);
    ring = std::min(ring, kShortRingTiles);
  }
  const int32_t stages_of_segment = (side.segment_tiles + most - 1) / most;
  shape.stage_tiles = (side.segment_tiles + stages_of_segment - 1) / stages_of_segment;
  shape.stages = std::max(2, ring / shape.stage_tiles);
}

// For tiles of up to `rows` rows. As many blocks as the kernel is made for, or fewer that have room for some rows.
FewShape few_shape(const CudaDevice& device, const FewKernel& few, int32_t rows, int32_t pairs,
                   const ExpertTiles& side) {
  constexpr int32_t kLeastSlots = 4;
  FewShape shape;
  shape.parts = parts_of(device, few, one_column(rows), pairs, side);
  choose_ring(device, few, pairs, side, shape);
  const int64_t ring = few_ring_bytes(shape.stages, shape.stage_tiles * static_cast<int>(tile_bytes(side.format)));
  const int64_t of_warp = ring + (shape.parts > 1 ? kPartBytes : 0);
  for (shape.blocks = few.blocks;; --shape.blocks) {
    shape.shared_bytes = shared_bytes(device, shape.blocks);
    const int64_t left = shape.shared_bytes - few.warps * of_warp;
    shape.row_slots = static_cast<int32_t>(left / row_stride(side.width()));
    if (shape.blocks == 1 || shape.row_slots >= std::min(rows, kLeastSlots)) return shape;
  }
}

}  // namespace

void allow_few(const CudaDevice& device, const std::string& name, const ExpertTiles& side) {
  for (const int32_t rows : {1, 32}) {
    const FewKernel few = few_kernel(side.format, one_column(rows));
    cuda::allow_shared(few.kernel, shared_bytes(device, 1));
    if (few_shape(device, few, rows, 1, side).row_slots < 1) {
      fail(name, ": rows of ", side.width(), " do not fit into this GPU's shared memory");
    }
  }
}

int32_t few_tile_rows(const CudaDevice& device, int32_t rows, int32_t pairs, const ExpertTiles& side) {
  return std::min(rows, few_shape(device, few_kernel(side.format, one_column(rows)), rows, pairs, side).row_slots);
}

void multiply_few_pairs(CudaDevice& device, const StepShape& shape, const ExpertProduct& product) {
  const ExpertTiles& side = product.experts;
  const FewKernel few = few_kernel(side.format, one_column(shape.wanted_tile_rows));
  const FewShape fit = few_shape(device, few, shape.wanted_tile_rows, shape.pairs, side);
  const int32_t blocks = fit.blocks * device.sm_count();
  cuda::launch(device,
               {.grid = blocks, .block = (few.warps + 1) * 32, .shared_bytes = fit.shared_bytes, .overlap = true},
               few.kernel, product,
               FewLaunch{.row_slots = fit.row_slots,
                         .strips = Divisor(side.strips),
                         .blocks = Divisor(blocks),
                         .parts = Divisor(fit.parts),
                         .part_segments = side.segments / fit.parts,
                         .stages = fit.stages,
                         .stage_tiles = fit.stage_tiles},
               device.step());
}

}  // namespace weir
