#include "ops/attention/attention_mma_cuda.cuh"

namespace weir {

MmaKernels mma_kernels_64(bool many) {
  return many ? mma_kernels<MmaShape<64, 64, false, 1, 4, 1>>() : mma_kernels<MmaShape<64, 64, false, 1, 1, 4>>();
}

}  // namespace weir
