#include "ops/attention/attention_few_cuda.cuh"
#include "ops/attention/attention_many_cuda.cuh"

namespace weir {

MmaKernels mma_kernels_128(bool are_many) { return are_many ? many::kernels<128>() : few::kernels<128>(); }

}  // namespace weir
