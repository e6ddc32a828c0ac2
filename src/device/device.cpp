#include "device/device.h"

#include <cassert>

#include "device/cpu.h"
#include "device/cuda_device.h"

namespace weir {

CpuDevice& Device::cpu() {
  assert(!is_cuda_);
  return static_cast<CpuDevice&>(*this);
}

CudaDevice& Device::cuda() {
  assert(is_cuda_);
  return static_cast<CudaDevice&>(*this);
}

}  // namespace weir
