// What ops compute on: the CPU or a GPU. An op's factory checks its arguments and binds the kernels of the kind.
#pragma once

#include <cstdint>

namespace weir {

class CpuDevice;
class CudaDevice;

// Counted by the ops while they run (on the calling thread, outside parallel loops).
struct StepCounters {
  int64_t weight_bytes_read = 0;    // bytes of weights that the step had to read, each once
  int64_t state_bytes_read = 0;     // pages and anchors
  int64_t state_bytes_written = 0;  // rows of pages and anchors
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  bool is_cuda() const { return is_cuda_; }
  CpuDevice& cpu();    // of a device that is one
  CudaDevice& cuda();  // likewise
  StepCounters& counters() { return counters_; }

 protected:
  explicit Device(bool is_cuda) : is_cuda_(is_cuda) {}

 private:
  bool is_cuda_;
  StepCounters counters_;
};

}  // namespace weir
