// What a GPU can do at most, measured, and how long queued work takes. Defined in programs with the CUDA objects.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/cuda_device.h"

namespace weir {

// Microseconds between the start and the end of what `work` queues on the device's stream, on the device's clock.
[[gnu::weak]] double cuda_time_us(CudaDevice& device, const std::function<void()>& work);

struct CudaBandwidths {
  double read_gbs = 0;  // of reading memory once
  double copy_gbs = 0;  // of a copy within the device, bytes read and bytes written
};
// The best of several passes over `bytes` of memory, which must be much larger than the L2 cache.
[[gnu::weak]] CudaBandwidths measure_cuda_bandwidths(CudaDevice& device, int64_t bytes);

// TFLOP/s of BF16 products with FP32 sums, operands in shared memory, all multiprocessors busy for some milliseconds.
[[gnu::weak]] double measure_cuda_bf16_peak(CudaDevice& device);

struct CudaLatencies {
  double graph_node_us = 0;  // of one more empty kernel in a graph
  double round_trip_us = 0;  // of a launch and the wait for it
};
[[gnu::weak]] CudaLatencies measure_cuda_latencies(CudaDevice& device);

struct CudaTransfers {
  double to_device_gbs = 0, to_host_gbs = 0;  // from and to pinned memory
};
[[gnu::weak]] CudaTransfers measure_cuda_transfers(CudaDevice& device, int64_t bytes);

}  // namespace weir
