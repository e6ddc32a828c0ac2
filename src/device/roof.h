// What this machine can do at most, measured: the roofs that benches and `weir bench` compare with.
#pragma once

#include <cstdint>

#include <span>

#include "device/cpu.h"

namespace weir {

// GB/s of reading `bytes` of memory once, sequentially, with all threads of the device: the best of several passes. The
// buffer must be much larger than the caches. Error when the memory is refused.
double measure_read_bandwidth(CpuDevice& device, int64_t bytes = int64_t{512} << 20);

// The same for memory that is there already, a model's weights: the best of three passes, the first of which may fetch
// them. When they fit into a cache this is that cache's bandwidth.
double measure_read_bandwidth(CpuDevice& device, std::span<const std::span<const std::byte>> pieces);

// GFLOP/s of independent FP32 fused multiply-adds in registers with all threads, the best of several passes (an FMA
// counts two). The device's kernel set; for the reference set AVX2, or 0 on a processor without it.
double measure_fma_peak(CpuDevice& device);

// GOP/s of products of 8-bit integers summed in 32 bits, likewise (a product and its addition count two): with VNNI
// where the device's kernel set is AVX-512 and the processor has it, else AVX2.
double measure_int8_peak(CpuDevice& device);

}  // namespace weir
