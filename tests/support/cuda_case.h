// What tests of CUDA kernels need: a device of their own for each test, and buffers in its memory. In programs linked
// with the emulator the device is the CPU pretending; in others tests are skipped where there is no GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "device/cuda_device.h"

namespace weir::testing {

class CudaCase : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
    device_ = open_cuda();
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    device_->synchronize();
    EXPECT_EQ(device_->error(), "");
  }
  CudaDevice& device() { return *device_; }

 private:
  std::unique_ptr<CudaDevice> device_;
};

// The same for parameterised tests.
template <class Parameter>
class CudaCaseWith : public CudaCase, public ::testing::WithParamInterface<Parameter> {};

template <class T>
class DeviceBuffer {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  // Every byte 0xff: NaN for floats.
  DeviceBuffer(CudaDevice& device, int64_t count)
      : device_(device), count_(count), data_(device.allocate_array<T>(count)) {
    poison();
  }
  DeviceBuffer(CudaDevice& device, const std::vector<T>& values)
      : DeviceBuffer(device, static_cast<int64_t>(values.size())) {
    device_.to_device(data_, values.data(), bytes());
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { device_.release(reinterpret_cast<std::byte*>(data_)); }

  T* data() const { return data_; }
  int64_t size() const { return count_; }
  void poison() { device_.fill(data_, 0xff, bytes()); }
  // The first of its values.
  void set(const std::vector<T>& values) {
    ASSERT_LE(static_cast<int64_t>(values.size()), count_);
    device_.to_device(data_, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }
  std::vector<T> values() const {
    std::vector<T> out(static_cast<size_t>(count_));
    device_.to_host(out.data(), data_, bytes());
    return out;
  }

 private:
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(T)); }

  CudaDevice& device_;
  int64_t count_;
  T* data_;
};

}  // namespace weir::testing
