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

}  // namespace

void allow_products(TileFormat format) {
  for (const bool one_column : {true, false}) {
    const FewKernel few = few_kernel(format, one_column);
    cuda::allow_shared(few.kernel, few.warps * few.ring_bytes);
  }
  allow_many(format);
}

int32_t pair_tile_rows(int32_t rows, int64_t top_k, int64_t experts, TileFormat gate_up, TileFormat down) {
  constexpr int64_t kRowsForMany = 16;  // of an expert, on average: the weights' time is then no longer all
  const int32_t many = std::min(many_tile_rows(gate_up), many_tile_rows(down));
  if (many > 0 && rows * top_k >= kRowsForMany * experts) return many;
  return rows <= 8 ? 8 : kMostFewRows;
}

void multiply_pairs(CudaDevice& device, int32_t tile_rows, const ExpertProduct& product) {
  if (tile_rows > kMostFewRows) return multiply_many_pairs(device, product);
  const FewKernel few = few_kernel(product.experts.format, tile_rows <= 8);
  cuda::launch(
      device,
      {.grid = device.sm_count(), .block = few.warps * 32, .shared_bytes = few.warps * few.ring_bytes, .overlap = true},
      few.kernel, product);
}

}  // namespace weir
