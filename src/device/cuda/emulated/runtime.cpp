#include "device/cuda/emulated/runtime.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/cuda/emulated/block.h"

using Call = std::function<cudaError_t()>;
struct CUgraph_st {
  std::vector<Call> calls;
};
struct CUgraphExec_st {
  std::vector<Call> calls;
};
struct CUstream_st {
  CUgraph_st* capture = nullptr;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};

namespace weir::emulated {

namespace {

constexpr size_t kDefaultSharedBytes = size_t{48} << 10;
constexpr size_t kCanaryBytes = 256;  // behind each allocation
constexpr unsigned char kCanary = 0xa5;

struct Runtime {
  std::mutex mutex;
  std::map<std::byte*, size_t> allocations;
  size_t device_bytes = size_t{8} << 30, used_bytes = 0;
  int allocations_to_failure = 0, launches_to_failure = 0;
  std::unordered_map<const void*, size_t> shared_limits;
};

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// True when a countdown, if on, has reached the failure.
bool count_down(int& remaining) { return remaining > 0 && --remaining == 0; }

cudaError_t enqueue(cudaStream_t stream, Call call) {
  if (!stream || !stream->capture) return result(call());
  stream->capture->calls.push_back(std::move(call));
  return cudaSuccess;
}

bool canary_intact(const std::byte* memory, size_t bytes) {
  for (size_t i = 0; i < kCanaryBytes; ++i) {
    if (memory[bytes + i] != std::byte{kCanary}) return false;
  }
  return true;
}

void report_overrun(const std::byte* memory, size_t bytes) {
  std::fprintf(stderr, "CUDA emulator: something wrote behind the %zu bytes of device memory at %p\n", bytes,
               static_cast<const void*>(memory));
}

}  // namespace

void fail_allocation_after(int n) { runtime().allocations_to_failure = n; }
void fail_launch_after(int n) { runtime().launches_to_failure = n; }
void set_device_memory(size_t bytes) { runtime().device_bytes = bytes; }

cudaError_t set_shared_limit(const void* kernel, size_t bytes) {
  if (bytes > kSharedBytes) return result(cudaErrorInvalidValue);
  const std::lock_guard lock(runtime().mutex);
  runtime().shared_limits[kernel] = bytes;
  return cudaSuccess;
}

size_t shared_limit(const void* kernel) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().shared_limits.find(kernel);
  return found == runtime().shared_limits.end() ? kDefaultSharedBytes : std::max(found->second, kDefaultSharedBytes);
}

cudaError_t launch_kernel(cudaStream_t stream, dim3 grid, dim3 block, unsigned cluster, size_t shared_bytes,
                          const void* kernel, std::function<void()> body, const char* file, unsigned line) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > kMaxThreads || blocks == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535 || cluster == 0 || (cluster > kMaxCluster && cluster != grid.x) || grid.x % cluster != 0) {
    return result(cudaErrorInvalidConfiguration);
  }
  if (shared_bytes > shared_limit(kernel)) return result(cudaErrorInvalidValue);
  if (count_down(runtime().launches_to_failure)) return result(cudaErrorLaunchFailure);
  return enqueue(stream, [=, body = std::move(body)] {
    const std::string failure = run_grid(grid, block, cluster, shared_bytes, body);
    if (failure.empty()) return cudaSuccess;
    std::fprintf(stderr, "CUDA emulator: kernel launched at %s:%u: %s\n", file, line, failure.c_str());
    return cudaErrorLaunchFailure;
  });
}

}  // namespace weir::emulated

using weir::emulated::enqueue;
using weir::emulated::result;
using weir::emulated::runtime;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return result(cudaErrorInvalidDevice);
  *properties = {.name = "emulated",
                 .totalGlobalMem = runtime().device_bytes,
                 .sharedMemPerBlock = size_t{48} << 10,
                 .sharedMemPerBlockOptin = weir::emulated::kSharedBytes,
                 .sharedMemPerMultiprocessor = size_t{228} << 10,
                 .regsPerBlock = 65536,
                 .major = 9,
                 .minor = 0,
                 .multiProcessorCount = weir::emulated::kMultiprocessors,
                 .maxThreadsPerMultiProcessor = 2048,
                 .l2CacheSize = 1 << 20};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return result(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(weir::emulated::last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return weir::emulated::last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return cudaGetErrorName(error);
  }
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  weir::emulated::Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  *memory = nullptr;
  if (weir::emulated::count_down(state.allocations_to_failure) || bytes > state.device_bytes - state.used_bytes) {
    return result(cudaErrorMemoryAllocation);
  }
  if (bytes == 0) return cudaSuccess;
  const size_t rounded = (bytes + weir::emulated::kCanaryBytes + 255) / 256 * 256;
  void* raw = std::aligned_alloc(256, rounded);
  if (!raw) return result(cudaErrorMemoryAllocation);
  std::memset(raw, 0xff, bytes);
  std::memset(static_cast<std::byte*>(raw) + bytes, weir::emulated::kCanary, rounded - bytes);
  state.allocations[static_cast<std::byte*>(raw)] = bytes;
  state.used_bytes += bytes;
  *memory = raw;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (!memory) return cudaSuccess;
  weir::emulated::Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  const auto found = state.allocations.find(static_cast<std::byte*>(memory));
  if (found == state.allocations.end()) return result(cudaErrorInvalidValue);
  const bool intact = weir::emulated::canary_intact(found->first, found->second);
  if (!intact) weir::emulated::report_overrun(found->first, found->second);
  state.used_bytes -= found->second;
  std::free(memory);
  state.allocations.erase(found);
  return intact ? cudaSuccess : result(cudaErrorLaunchFailure);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*memory) return result(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xff, bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = runtime().device_bytes;
  *free = runtime().device_bytes - runtime().used_bytes;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, [=] {
    if (bytes) std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (size_t y = 0; y < height; ++y) {
      std::memcpy(static_cast<std::byte*>(to) + y * to_pitch, static_cast<const std::byte*>(from) + y * from_pitch,
                  width);
    }
    return cudaSuccess;
  });
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] {
    if (bytes) std::memset(memory, value, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, nullptr); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return result(stream && stream->capture ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  return enqueue(stream, [=] {
    function(data);
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return enqueue(stream, [=] {
    event->time = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (!stream || stream->capture) return result(cudaErrorInvalidValue);
  stream->capture = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream || !stream->capture) return result(cudaErrorInvalidValue);
  *graph = std::exchange(stream->capture, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->calls};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  for (const Call& call : executable->calls) {
    const cudaError_t error = call();
    if (error != cudaSuccess) return result(error);
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
