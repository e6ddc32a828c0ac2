// A model compiled for a device and limits: a flat list of bound ops over fixed buffers. A step walks the list.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu.h"
#include "device/cuda_device.h"
#include "device/memory.h"
#include "models/model_spec.h"
#include "ops/attention/attention.h"
#include "ops/bound_op.h"
#include "ops/linear/row_codes.h"
#include "state/state_layout.h"

namespace weir {

struct CompileOptions {
  int32_t max_rows = 512;       // of a step
  int32_t max_logit_rows = 64;  // of a step
  StateDtype kv_dtype = StateDtype::kF16;
  Activations activations = Activations::kF32;
  bool graphs = true;  // on a GPU: decode steps are recorded once and replayed
};

// [rows, cols], rows contiguous: FP32, or where `type` says so BF16, of which `data` is the address.
struct Buffer {
  float* data = nullptr;
  int64_t cols = 0;
  RowType type = RowType::kF32;

  uint16_t* bf16() const { return reinterpret_cast<uint16_t*>(data); }
};

// Told after every op of a step which one ran and where its result lies, on the device (tests, taps).
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void after(const BoundOp& op, Buffer output) = 0;
};

class Circuit {
 public:
  explicit Circuit(Device& device, const CompileOptions& options) : device_(device), options_(options) {}

  // While compiling: a buffer of max_rows rows, shared by all who name the same key with at most the same width.
  Buffer buffer(std::string_view key, int64_t cols);
  Buffer bf16_buffer(std::string_view key, int64_t cols);
  Buffer logit_buffer(std::string_view key, int64_t cols);  // of max_logit_rows rows
  Buffer bf16_logit_buffer(std::string_view key, int64_t cols);
  int32_t* int_buffer(std::string_view key, int64_t cols);
  void add(std::unique_ptr<BoundOp> op, Buffer output);

  void run(const StepView& step, StepObserver* observer = nullptr);

  Device& device() { return device_; }
  const CompileOptions& options() const { return options_; }
  StateLayout& layout() { return layout_; }
  const StateLayout& layout() const { return layout_; }
  size_t size() const { return ops_.size(); }
  const BoundOp& op(size_t i) const { return *ops_[i].op; }
  int64_t buffer_bytes() const { return buffer_bytes_; }
  const int32_t* find_int_buffer(std::string_view key) const;  // nullptr when there is none

  Buffer logits;  // [logit rows of the step, vocab]

 private:
  struct Entry {
    std::unique_ptr<BoundOp> op;
    Buffer output;
  };
  std::byte* allocate(int64_t bytes);
  void run_on(CudaDevice& device, const StepView& step, StepObserver* observer);
  void enqueue(const StepBounds& bounds);
  int64_t weight_bytes(int32_t rows) const;  // that a step reads at least; experts as if all were equally likely

  Device& device_;
  CompileOptions options_;
  StateLayout layout_;
  std::vector<Entry> ops_;
  std::deque<Mapping> memory_;  // on the CPU; a GPU keeps its own
  std::map<std::string, Buffer, std::less<>> buffers_;
  std::map<std::string, int32_t*, std::less<>> int_buffers_;
  int64_t buffer_bytes_ = 0;
  // Recorded launches of decode steps, by the bounds of the steps that they serve (graph_bounds()).
  struct Graph {
    StepBounds bounds;
    int number = -1;
    int64_t weight_bytes = 0;
  };
  std::vector<Graph> graphs_;
  int64_t graph_generation_ = 0;
};

// `spec` must outlive the circuit: ops point to its vectors and into the mapped files.
std::unique_ptr<Circuit> compile(const ModelSpec& spec, Device& device, const CompileOptions& options);

}  // namespace weir
