// For tests of the kernels' header: device memory as a vector, and a stream owner.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "device/cuda/kernel.h"

namespace weir::cuda {

struct StreamOwner {
  cudaStream_t stream() const { return nullptr; }
  void launched(int error) {
    if (first_error == 0) first_error = error;
  }
  int first_error = 0;
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : host_(count) {
    EXPECT_EQ(cudaMalloc(&device_, count * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(device_, 0xff, count * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(cudaMemcpy(device_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceArray() { EXPECT_EQ(cudaFree(device_), cudaSuccess); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* device() const { return device_; }
  const std::vector<T>& host() {
    EXPECT_EQ(cudaMemcpy(host_.data(), device_, host_.size() * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return host_;
  }

 private:
  T* device_ = nullptr;
  std::vector<T> host_;
};

// Skips without a GPU; afterwards everything that was launched has to have succeeded.
class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU to test on";
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(owner.first_error, 0) << cudaGetErrorString(static_cast<cudaError_t>(owner.first_error));
    cudaGetLastError();
  }

  StreamOwner owner;
};

// Small integers, which products of 16-bit formats are exact with: from -3 to 3.
inline int small_integer(uint32_t i) { return static_cast<int>(i * 2654435761u >> 16) % 7 - 3; }

}  // namespace weir::cuda
