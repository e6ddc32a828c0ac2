// WEIR_HD marks functions that kernels of the GPU call too. For every other compiler it is nothing.
#pragma once

#ifdef __CUDACC__
#define WEIR_HD __host__ __device__
#else
#define WEIR_HD
#endif
