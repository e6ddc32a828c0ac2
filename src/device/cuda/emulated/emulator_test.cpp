// What the emulator does beyond running right kernels: it shows wrong ones.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "device/cuda/ptx.h"
#include "device/cuda/testing.h"

namespace weir::cuda {
namespace {

// The error of a launch and what the emulator said about it.
template <class... Parameters, class... Arguments>
std::string failure(const LaunchShape& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  StreamOwner owner;
  testing::internal::CaptureStderr();
  launch(owner, shape, kernel, arguments...);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(owner.first_error == 0, said.empty());
  EXPECT_TRUE(owner.first_error == 0 || owner.first_error == cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), owner.first_error);
  return said;
}

__global__ void half_waits_kernel() {
  if (threadIdx.x < 32) ptx::named_barrier_sync(3, 64);
}
__global__ void polls_forever_kernel(uint64_t*) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) ptx::mbarrier_init(&barrier, 1);
  __syncthreads();
  ptx::mbarrier_wait(&barrier, 0);
}

TEST(Emulator, DeadlocksAreNamed) {
  const std::string barrier = failure({.grid = {1, 2}, .block = 64}, half_waits_kernel);
  EXPECT_NE(barrier.find("deadlock: 32 threads wait, among them (0, 0, 0) for a named barrier in block (0, 0, 0)"),
            std::string::npos)
      << barrier;
  EXPECT_NE(barrier.find("emulator_test.cpp:"), std::string::npos) << barrier;
  const std::string poll = failure({.block = 32}, polls_forever_kernel, nullptr);
  EXPECT_NE(poll.find("deadlock: a thread polls"), std::string::npos) << poll;
}

__global__ void leaves_early_kernel() {
  WEIR_DYNAMIC_SHARED(float4, shared);
  ptx::cluster_sync();
  if (ptx::cluster_rank() == 1) return;
  for (int i = 0; i < 100; ++i) emulated::yield();
  ptx::cluster_store16(ptx::shared_of_rank(ptx::shared_address(shared), 1), {});
}
__global__ void one_block_waits_kernel() {
  if (ptx::cluster_rank() == 1) {
    WEIR_DYNAMIC_SHARED(uint64_t, shared);
    ptx::mbarrier_init(shared, 1);
    ptx::mbarrier_wait(shared, 0);
  }
  ptx::cluster_sync();
}

TEST(Emulator, MistakesOfClustersAreNamed) {
  const LaunchShape shape{.grid = 2, .block = 32, .shared_bytes = 64, .cluster = 2};
  const std::string early = failure(shape, leaves_early_kernel);
  EXPECT_NE(early.find("shared memory is used of a block of the cluster that has ended"), std::string::npos) << early;
  const std::string poll = failure(shape, one_block_waits_kernel);
  EXPECT_NE(poll.find("deadlock: a thread polls"), std::string::npos) << poll;
  StreamOwner owner;
  launch(owner, {.grid = 3, .block = 32, .cluster = 2}, leaves_early_kernel);
  EXPECT_EQ(owner.first_error, cudaErrorInvalidConfiguration);
  cudaGetLastError();
}

__global__ void diverged_kernel(int* y) {
  if (threadIdx.x % 2 == 0) {
    *y = __shfl_xor_sync(kAllLanes, 1, 1);
  } else {
    __syncwarp();
  }
}
__global__ void absent_lane_kernel(int* y) {
  if (threadIdx.x < 16) *y = __shfl_sync(0xffffu, 1, 20);
}
__global__ void crooked_copy_kernel(const char* x) {
  WEIR_DYNAMIC_SHARED(char, shared);
  ptx::copy_async16(ptx::shared_address(shared), x + 4);
}
__global__ void trap_kernel() {
  if (blockIdx.x == 1 && threadIdx.x == 5) __trap();
}

TEST(Emulator, WrongInstructionsAreNamed) {
  DeviceArray<int> y(4);
  EXPECT_NE(failure({.block = 32}, diverged_kernel, y.device()).find("different instructions"), std::string::npos);
  EXPECT_NE(failure({.block = 32}, absent_lane_kernel, y.device()).find("does not take part"), std::string::npos);
  EXPECT_NE(failure({.shared_bytes = 64}, crooked_copy_kernel, reinterpret_cast<const char*>(y.device()))
                .find("not aligned to 16 bytes"),
            std::string::npos);
  EXPECT_NE(failure({.grid = 3, .block = 32}, trap_kernel).find("__trap (thread 5, 0, 0) in block (1, 0, 0)"),
            std::string::npos);
  EXPECT_EQ(failure({.grid = 1, .block = 32}, trap_kernel), "");
}

// Neighbours' values through shared memory, with and without the barrier.
__global__ void neighbour_kernel(float* y, bool wait) {
  WEIR_DYNAMIC_SHARED(float, shared);
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (wait) __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = shared[(threadIdx.x + 63) % 64];
}

TEST(Emulator, MissingBarriersReadPoison) {
  for (const bool wait : {true, false}) {
    DeviceArray<float> y(128);
    EXPECT_EQ(failure({.grid = 2, .block = 64, .shared_bytes = 256}, neighbour_kernel, y.device(), wait), "");
    int poisoned = 0;
    for (const float value : y.host()) poisoned += std::isnan(value) ? 1 : 0;
    EXPECT_EQ(poisoned, wait ? 0 : 64);  // 63 in the block whose threads run in descending order, 1 in the other
  }
}

__global__ void copy_kernel(uint32_t* y, const uint32_t* x, bool wait) {
  WEIR_DYNAMIC_SHARED(uint32_t, shared);
  ptx::copy_async16(ptx::shared_address(shared + 4 * threadIdx.x), x + 4 * threadIdx.x);
  ptx::commit_copies();
  if (wait) ptx::wait_copies<0>();
  y[threadIdx.x] = shared[4 * threadIdx.x];
}

TEST(Emulator, MissingWaitsForCopiesReadPoison) {
  const DeviceArray<uint32_t> x(std::vector<uint32_t>(128, 5));
  for (const bool wait : {true, false}) {
    DeviceArray<uint32_t> y(32);
    EXPECT_EQ(failure({.block = 32, .shared_bytes = 512}, copy_kernel, y.device(), x.device(), wait), "");
    EXPECT_EQ(y.host(), std::vector<uint32_t>(32, wait ? 5 : 0xffffffffu));
  }
}

__global__ void write_kernel(std::byte* memory, size_t at) { memory[at] = std::byte{1}; }

TEST(Emulator, MemoryIsPoisonedCountedAndGuarded) {
  void* memory = nullptr;
  size_t before = 0, after = 0, total = 0;
  cudaMemGetInfo(&before, &total);
  ASSERT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
  cudaMemGetInfo(&after, &total);
  EXPECT_EQ(before - after, 1000u);
  for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(static_cast<unsigned char*>(memory)[i], 0xff);
  StreamOwner owner;
  launch(owner, {}, write_kernel, static_cast<std::byte*>(memory), 1000u);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaFree(memory), cudaErrorLaunchFailure);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("wrote behind the 1000 bytes"), std::string::npos);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(&memory, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(memory, nullptr);
  cudaGetLastError();
}

TEST(Emulator, FailuresCanBeOrdered) {
  void* memory = nullptr;
  emulated::fail_allocation_after(2);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  cudaFree(memory);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  cudaFree(memory);
  emulated::fail_launch_after(1);
  StreamOwner owner;
  launch(owner, {}, trap_kernel);
  EXPECT_EQ(owner.first_error, cudaErrorLaunchFailure);
  StreamOwner next;
  launch(next, {}, trap_kernel);
  EXPECT_EQ(next.first_error, 0);
  cudaGetLastError();
}

}  // namespace
}  // namespace weir::cuda
