#include "device/cuda_roof.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/error.h"
#include "device/cuda/ptx.h"

namespace weir {
namespace {

using cuda::launch;
namespace ptx = cuda::ptx;

constexpr int kPasses = 9;

void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail("CUDA: ", what, ": ", cudaGetErrorString(status));
}

void must_be_well(CudaDevice& device) {
  if (!device.synchronize()) fail(device.error());
}

// Memory for as long as a measurement takes.
struct Buffer {
  Buffer(CudaDevice& owner, int64_t bytes) : device(owner), data(owner.allocate(bytes)) {}
  ~Buffer() { device.release(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  CudaDevice& device;
  std::byte* data;
};

double best_us(CudaDevice& device, const std::function<void()>& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < kPasses; ++pass) best = std::min(best, cuda_time_us(device, work));
  return best;
}

double gbs(int64_t bytes, double us) { return static_cast<double>(bytes) / us * 1e-3; }

// Eight 16-byte loads of a thread in flight.
__global__ void __launch_bounds__(512) read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
  constexpr int kUnroll = 8;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t bits = 0;
  int64_t i = thread;
  for (; i + (kUnroll - 1) * threads < count; i += kUnroll * threads) {
    uint4 words[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) words[u] = ptx::load_stream(data + i + u * threads);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) bits |= words[u].x | words[u].y | words[u].z | words[u].w;
  }
  for (; i < count; i += threads) bits |= data[i].x;
  if (bits == 0x12345678u) *sink = bits;  // never: the memory is zeros, which the compiler doesn't know
}

__global__ void empty_kernel() {}

constexpr int kPeakColumns = 256, kPeakGroups = 2, kPeakSteps = 4;  // 16 k each
constexpr int kPeakBytes = (64 * kPeakGroups + kPeakColumns) * 128;

// Each warpgroup multiplies its 64 x 64 tile by one of 64 x 256, again and again, into the same sums.
__global__ void __launch_bounds__(128 * kPeakGroups, 1) product_kernel(int rounds, float* sink) {
#if defined(WEIR_CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WEIR_DYNAMIC_SHARED(uint16_t, shared);
  // Values of both signs near 1, so that the multipliers have work to do.
  for (int i = static_cast<int>(threadIdx.x); i < kPeakBytes / 2; i += static_cast<int>(blockDim.x)) {
    const uint32_t noise = static_cast<uint32_t>(i) * 2654435761u >> 16;
    shared[i] = static_cast<uint16_t>(0x3f00u | (noise & 0x80ffu));
  }
  ptx::fence_async_shared();
  __syncthreads();
  const uint32_t b = ptx::shared_address(shared);
  const uint32_t a = b + kPeakColumns * 128 + threadIdx.x / 128 * 64 * 128;
  float sums[kPeakColumns / 2] = {};
  for (int round = 0; round < rounds; ++round) {
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kPeakSteps; ++step) {
      ptx::wgmma_bf16_shared<kPeakColumns>(sums, ptx::wgmma_descriptor(a + 32 * step, 16, 1024, ptx::Swizzle::k128),
                                           ptx::wgmma_descriptor(b + 32 * step, 16, 1024, ptx::Swizzle::k128));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }
  ptx::wgmma_wait<0>();
  ptx::pin<kPeakColumns / 2>(sums);
  float total = 0.f;
  for (int i = 0; i < kPeakColumns / 2; ++i) total += sums[i];
  if (total == 0.5f) *sink = total;
#endif
}

}  // namespace

double cuda_time_us(CudaDevice& device, const std::function<void()>& work) {
  const cudaStream_t stream = static_cast<cudaStream_t>(device.stream());
  cudaEvent_t start = nullptr, end = nullptr;
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&end), "event");
  device.launched(static_cast<int>(cudaEventRecord(start, stream)));
  work();
  device.launched(static_cast<int>(cudaEventRecord(end, stream)));
  must_be_well(device);
  float ms = 0.f;
  must(cudaEventElapsedTime(&ms, start, end), "time");
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return static_cast<double>(ms) * 1e3;
}

CudaBandwidths measure_cuda_bandwidths(CudaDevice& device, int64_t bytes) {
  bytes = bytes / 512 * 512;
  const Buffer from(device, bytes), to(device, bytes);
  double read_us = std::numeric_limits<double>::infinity();
  for (const int blocks : {2, 4, 8}) {
    read_us =
        std::min(read_us, best_us(device, [&] {
                   launch(device, {.grid = device.sm_count() * blocks, .block = 512}, read_kernel,
                          reinterpret_cast<const uint4*>(from.data), bytes / 16, reinterpret_cast<uint32_t*>(to.data));
                 }));
  }
  const double copy_us = best_us(device, [&] { device.copy(to.data, from.data, bytes); });
  return {.read_gbs = gbs(bytes, read_us), .copy_gbs = gbs(2 * bytes, copy_us)};
}

double measure_cuda_bf16_peak(CudaDevice& device) {
  if (device.info().major != 9) return 0;  // the kernel's instructions are Hopper's
  const Buffer sink(device, 4);
  must(cuda::allow_shared(product_kernel, kPeakBytes), "shared memory");
  const int rounds = device.sm_count() > 16 ? 20000 : 2;
  const double us = best_us(device, [&] {
    launch(device, {.grid = device.sm_count(), .block = 128 * kPeakGroups, .shared_bytes = kPeakBytes}, product_kernel,
           rounds, reinterpret_cast<float*>(sink.data));
  });
  const double flops = 2. * 64 * kPeakColumns * 16 * kPeakSteps * kPeakGroups * rounds * device.sm_count();
  return flops / us * 1e-6;
}

CudaLatencies measure_cuda_latencies(CudaDevice& device) {
  constexpr int kNodes = 200, kTrips = 100;
  device.begin_capture();
  for (int i = 0; i < kNodes; ++i) launch(device, {.grid = 1, .block = 32}, empty_kernel);
  const int graph = device.end_capture();
  must_be_well(device);
  device.launch_graph(graph);
  const double nodes_us = best_us(device, [&] { device.launch_graph(graph); });
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTrips; ++i) {
    launch(device, {.grid = 1, .block = 32}, empty_kernel);
    must_be_well(device);
  }
  const std::chrono::duration<double, std::micro> trips = std::chrono::steady_clock::now() - start;
  return {.graph_node_us = nodes_us / kNodes, .round_trip_us = trips.count() / kTrips};
}

CudaTransfers measure_cuda_transfers(CudaDevice& device, int64_t bytes) {
  const Buffer memory(device, bytes);
  void* pinned = nullptr;
  must(cudaMallocHost(&pinned, static_cast<size_t>(bytes)), "pinned memory");
  const auto transfer = [&](void* to, const void* from, cudaMemcpyKind kind) {
    return gbs(bytes, best_us(device, [&] {
                 device.launched(static_cast<int>(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind,
                                                                  static_cast<cudaStream_t>(device.stream()))));
               }));
  };
  const CudaTransfers found{.to_device_gbs = transfer(memory.data, pinned, cudaMemcpyHostToDevice),
                            .to_host_gbs = transfer(pinned, memory.data, cudaMemcpyDeviceToHost)};
  cudaFreeHost(pinned);
  return found;
}

}  // namespace weir
