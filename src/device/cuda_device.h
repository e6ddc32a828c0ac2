// An NVIDIA GPU as a device: memory, one stream, the staged step, captured graphs. Plain C++: the implementation
// (cuda_device_cuda.cu) is linked into programs that compute on GPUs, and into tests in emulated form.
//
// Kernels and copies are queued on one stream, in order. The first CUDA error stays: later work is refused, and the
// engine reports it after the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/step_view.h"
#include "device/device.h"

struct CUstream_st;

namespace weir {

using CudaStream = CUstream_st*;  // cudaStream_t

// Bounds of every step that some queued launches serve: grids come from these, the numbers of a step from its view.
struct StepBounds {
  int32_t rows = 0;
  int32_t spans = 0;
  int32_t logit_rows = 0;
  int32_t longest_span = 0;     // rows
  int64_t longest_context = 0;  // positions, the rows of the step included
};

struct CudaInfo {
  std::string name;
  int index = 0;
  int major = 0, minor = 0;  // compute capability
  int sm_count = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes = 0;  // most that a block may have
  int64_t total_bytes = 0, free_bytes = 0;
  int driver_version = 0, runtime_version = 0;  // 1000 * major + 10 * minor
};

class CudaDevice : public Device {
 public:
  virtual const CudaInfo& info() const = 0;
  int sm_count() const { return info().sm_count; }
  int64_t shared_limit() const { return info().shared_bytes; }
  CudaStream stream() const { return stream_; }

  // --- memory; Error when the card has too little left, with the numbers ---
  // Zeroed, as long as the device. For binding. Starts at a multiple of 256.
  virtual std::byte* allocate(int64_t bytes) = 0;
  template <class T>
  T* allocate_array(int64_t count) {
    return reinterpret_cast<T*>(allocate(count * static_cast<int64_t>(sizeof(T))));
  }
  virtual void release(std::byte* memory) = 0;  // earlier than that; queued work that uses it is waited for
  // Host memory that copies reach directly, as long as the device.
  virtual std::byte* allocate_host(int64_t bytes) = 0;
  virtual int64_t allocated_bytes() const = 0;
  virtual int64_t free_bytes() const = 0;  // of the card

  // Rows of host memory that begin `stride` bytes apart, on the device one after the other, as long as the device: the
  // same memory for the same host address, rows and sizes. ops/cuda_op.h has this for matrices.
  virtual const std::byte* upload(const std::byte* host, int64_t rows, int64_t row_bytes, int64_t stride) = 0;
  const float* upload(const float* host, int64_t count) {
    if (host == nullptr) return nullptr;
    return reinterpret_cast<const float*>(upload(reinterpret_cast<const std::byte*>(host), 1, count * 4, count * 4));
  }
  // The same for a moment, for ops that keep another layout: into device memory of theirs (rows * row_bytes).
  virtual void copy_rows(std::byte* to, const std::byte* host, int64_t rows, int64_t row_bytes, int64_t stride) = 0;
  // Asked before host memory is read for these two: true when it has written the rows itself (queued on stream()).
  // For weights that exist only as a description.
  using RowSource =
      std::function<bool(std::byte* to, const std::byte* host, int64_t rows, int64_t row_bytes, int64_t stride)>;
  void set_row_source(RowSource source) { row_source_ = std::move(source); }

  // Shared by the ops, which run one after the other; its content does not outlive an op.
  void reserve_workspace(int64_t bytes) { workspace_bytes_ = bytes > workspace_bytes_ ? bytes : workspace_bytes_; }
  virtual std::byte* workspace() = 0;  // at enqueue time; multiple of 256
  // The same for what blocks of a kernel tell each other (cuda/posts.h): an op leaves it zero.
  void reserve_posts(int64_t bytes) { posts_bytes_ = bytes > posts_bytes_ ? bytes : posts_bytes_; }
  virtual std::byte* posts() = 0;

  // Copies wait until they are done, and for everything queued before.
  virtual void to_host(void* host, const void* device, int64_t bytes) = 0;
  virtual void to_device(void* device, const void* host, int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;  // on the device; queued
  virtual void fill(void* device, int byte, int64_t bytes) = 0;      // queued

  // --- the step ---
  // Copies the view and what it points to, but for the pools, whose addresses are the device's already.
  virtual void stage(const StepView& step) = 0;
  const StepView* step() const { return step_; }  // on the device; where it lies changes only when staging grows
  static StepBounds bounds_of(const StepView& step);

  // --- errors and the stream ---
  virtual void launched(int error) = 0;   // of a launch: remembered
  virtual bool synchronize() = 0;         // false: something has failed
  virtual std::string error() const = 0;  // of the first failure; empty: none

  // --- graphs: what is queued between begin and end is recorded, not run ---
  virtual void begin_capture() = 0;
  virtual int end_capture() = 0;  // the graph's number, or -1 when the capture failed
  virtual void launch_graph(int graph) = 0;
  virtual int64_t graph_launches() const = 0;
  virtual int64_t generation() const = 0;  // graphs of an earlier one are void: staging or workspace has moved

 protected:
  CudaDevice() : Device(true) {}

  CudaStream stream_ = nullptr;
  const StepView* step_ = nullptr;
  int64_t workspace_bytes_ = 0;
  int64_t posts_bytes_ = 0;
  RowSource row_source_;
};

// Empty, or why there is no GPU to use: not built with CUDA, no driver, a driver that is too old, no device.
std::string why_no_cuda();
// Error with that reason.
std::unique_ptr<CudaDevice> open_cuda(int index = 0);

// What the CUDA objects define; null in programs without them.
struct CudaBackend {
  std::string (*why_not)();
  std::unique_ptr<CudaDevice> (*open)(int index);
};
[[gnu::weak]] const CudaBackend& cuda_backend();

}  // namespace weir
