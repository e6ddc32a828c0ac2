// Launches of moe_few_cuda.cuh.
#include <algorithm>

#include "ops/moe/moe_few_cuda.cuh"

namespace weir {
namespace {

FewKernel few_kernel(TileFormat format, bool one_column) {
  for (const auto& kernels : {few_kernel_plain, few_kernel_block, few_kernel_super}) {
    if (const FewKernel kernel = kernels(format, one_column); kernel.kernel != nullptr) return kernel;
  }
  return {};
}

// Dynamic shared memory of a block: as much as lets its multiprocessor have all of them.
int64_t shared_bytes(const CudaDevice& device, const FewKernel& few) {
  constexpr int64_t kReserved = 1024, kStatic = 4096;  // of a block
  const int64_t all = device.shared_limit() + kReserved;
  return (all / few.blocks - kReserved - kStatic) / 128 * 128;
}

int64_t row_slots(const CudaDevice& device, const FewKernel& few, int64_t width, int32_t parts) {
  const int64_t left = shared_bytes(device, few) - few.ring_bytes - (parts > 1 ? few.warps * kPartBytes : 0);
  return left / row_stride(width);
}

bool one_column(int32_t tile_rows) { return tile_rows <= 8; }

}  // namespace

void allow_few(const CudaDevice& device, TileFormat format) {
  for (const bool one : {true, false}) {
    const FewKernel few = few_kernel(format, one);
    cuda::allow_shared(few.kernel, shared_bytes(device, few));
  }
}

int32_t few_tile_rows(const CudaDevice& device, int32_t rows, TileFormat format, int64_t width) {
  const int32_t most = one_column(rows) ? rows : kMostFewRows;
  const int64_t slots = row_slots(device, few_kernel(format, one_column(most)), width, 2);
  return static_cast<int32_t>(std::min<int64_t>(most, slots));
}

void multiply_few_pairs(CudaDevice& device, const StepShape& shape, const ExpertProduct& product) {
  constexpr int64_t kStripsForParts = 4;  // of a warp, at most
  const FewKernel few = few_kernel(product.experts.format, one_column(shape.tile_rows));
  const int64_t blocks = int64_t{few.blocks} * device.sm_count();
  const int32_t segments = product.experts.segments;
  const bool split = one_column(shape.tile_rows) && segments > 1 && segments <= few.warps &&
                     int64_t{shape.pairs} * product.experts.strips < kStripsForParts * blocks * few.warps;
  FewLaunch launch{.parts = split ? segments : 1};
  launch.row_slots = static_cast<int32_t>(row_slots(device, few, product.experts.width(), launch.parts));
  cuda::launch(
      device,
      {.grid = blocks, .block = (few.warps + 1) * 32, .shared_bytes = shared_bytes(device, few), .overlap = true},
      few.kernel, product, launch, device.step());
}

}  // namespace weir
