#include "ops/attention/attention_mma_cuda.cuh"

namespace weir {

MmaKernels mma_kernels_mla(bool many) {
  return many ? mma_kernels<MmaShape<576, 512, true, 1, 4, 2, true>>()
              : mma_kernels<MmaShape<576, 512, true, 1, 2, 4>>();
}

}  // namespace weir
