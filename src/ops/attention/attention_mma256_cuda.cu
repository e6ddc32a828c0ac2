#include "ops/attention/attention_few_cuda.cuh"
#include "ops/attention/attention_many_cuda.cuh"

namespace weir {

MmaKernels mma_kernels_256(bool are_many) { return are_many ? many::kernels<256>() : few::kernels<256>(); }

}  // namespace weir
