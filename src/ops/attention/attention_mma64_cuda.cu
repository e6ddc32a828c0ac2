#include "ops/attention/attention_few_cuda.cuh"
#include "ops/attention/attention_many_cuda.cuh"

namespace weir {

MmaKernels mma_kernels_64(bool are_many) { return are_many ? many::kernels<64>() : few::kernels<64>(); }

}  // namespace weir
