// For tests that prepare steps in host memory and run them on any device: on a GPU the op works on copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "device/cuda_device.h"
#include "device/memory.h"

namespace weir::testing {

class DeviceCopies {
 public:
  explicit DeviceCopies(Device& device) : cuda_(device.is_cuda() ? &device.cuda() : nullptr) {}
  DeviceCopies(DeviceCopies&& other) noexcept : cuda_(other.cuda_), copies_(std::move(other.copies_)) {
    other.copies_.clear();
  }
  ~DeviceCopies() {
    for (const auto& [host, copy] : copies_) cuda_->release(copy.device);
  }

  CudaDevice* cuda() const { return cuda_; }

  // Where the op finds a buffer: there, or in its copy.
  std::byte* where(std::byte* host, int64_t bytes) {
    if (cuda_ == nullptr) return host;
    Copy& copy = copies_[host];
    if (copy.device == nullptr) copy = {cuda_->allocate(bytes), bytes};
    return copy.device;
  }
  std::byte* where(Mapping& memory) { return where(memory.data(), memory.bytes()); }
  float* where(std::vector<float>& values) {
    return reinterpret_cast<float*>(
        where(reinterpret_cast<std::byte*>(values.data()), static_cast<int64_t>(values.size() * sizeof(float))));
  }

  void to_device() const {
    for (const auto& [host, copy] : copies_) cuda_->to_device(copy.device, host, copy.bytes);
  }
  void to_host() const {
    for (const auto& [host, copy] : copies_) cuda_->to_host(host, copy.device, copy.bytes);
  }

 private:
  struct Copy {
    std::byte* device = nullptr;
    int64_t bytes = 0;
  };

  CudaDevice* cuda_;
  std::map<std::byte*, Copy> copies_;  // by host address
};

}  // namespace weir::testing
