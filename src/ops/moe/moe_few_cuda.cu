// Launches of moe_few_cuda.cuh.
#include "ops/moe/moe_few_cuda.cuh"

namespace weir {
namespace {

FewKernel few_kernel(TileFormat format, bool one_column) {
  for (const auto& kernels : {few_kernel_plain, few_kernel_block, few_kernel_super}) {
    if (const FewKernel kernel = kernels(format, one_column); kernel.kernel != nullptr) return kernel;
  }
  return {};
}

}  // namespace

void allow_products(TileFormat format) {
  for (const bool one_column : {true, false}) {
    const FewKernel few = few_kernel(format, one_column);
    cuda::allow_shared(few.kernel, few.warps * few.ring_bytes);
  }
}

int32_t pair_tile_rows(int32_t rows) { return rows <= 8 ? 8 : 32; }

void multiply_pairs(CudaDevice& device, int32_t tile_rows, const ExpertProduct& product) {
  const FewKernel few = few_kernel(product.experts.format, tile_rows <= 8);
  cuda::launch(device,
         {.grid = device.sm_count(),
          .block = few.warps * 32,
          .shared_bytes = few.warps * few.ring_bytes,
          .overlap = true},
         few.kernel, product);
}

}  // namespace weir
