#include "device/cuda/kernel.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/ptx.h"

namespace weir::cuda {
namespace {

// A stream owner as launch() wants it.
struct Owner {
  cudaStream_t stream() const { return nullptr; }
  void launched(int error) { last = error; }
  int last = 0;
};

__global__ void sum_kernel(float* y, const float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float sum = warp_sum(i < n ? x[i] : 0.f);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

TEST(Kernel, SumsOverWarps) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
  Owner owner;
  float *x = nullptr, *y = nullptr;
  ASSERT_EQ(cudaMalloc(&x, 64 * 4), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&y, 2 * 4), cudaSuccess);
  std::vector<float> host(64);
  for (size_t i = 0; i < 64; ++i) host[i] = static_cast<float>(i);
  cudaMemcpy(x, host.data(), 256, cudaMemcpyHostToDevice);
  launch(owner, {.grid = 2, .block = 32}, sum_kernel, y, x, 50);
  EXPECT_EQ(owner.last, 0);
  cudaMemcpy(host.data(), y, 8, cudaMemcpyDeviceToHost);
  EXPECT_EQ(host[0], 31.f * 16);
  EXPECT_EQ(host[1], 49.f * 25 - 31.f * 16);
  cudaFree(x);
  cudaFree(y);
}

}  // namespace
}  // namespace weir::cuda
