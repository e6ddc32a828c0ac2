#include "ops/attention/attention_mma_cuda.cuh"

namespace weir {

MmaKernels mma_kernels_256(bool many) {
  return many ? mma_kernels<MmaShape<256, 256, false, 1, 4, 2>>() : mma_kernels<MmaShape<256, 256, false, 1, 1, 4>>();
}

}  // namespace weir
