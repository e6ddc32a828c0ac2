#include "models/circuit.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ops/cuda_op.h"

namespace weir {
namespace {
constexpr int64_t kShortestGraphContext = 1024;
}

std::byte* Circuit::allocate(int64_t bytes) {
  buffer_bytes_ += bytes;
  return device_.is_cuda() ? device_.cuda().allocate(bytes) : memory_.emplace_back(bytes).data();
}

Buffer Circuit::buffer(std::string_view key, int64_t cols) {
  const auto found = buffers_.find(key);
  if (found != buffers_.end() && found->second.cols >= cols) return {found->second.data, cols};
  const Buffer made{reinterpret_cast<float*>(allocate(options_.max_rows * cols * 4)), cols};
  buffers_.insert_or_assign(std::string(key), made);
  return made;
}

Buffer Circuit::bf16_buffer(std::string_view key, int64_t cols) {
  return {buffer(key, (cols + 1) / 2).data, cols, RowType::kBf16};
}

Buffer Circuit::logit_buffer(std::string_view key, int64_t cols) {
  const auto found = buffers_.find(key);
  if (found != buffers_.end()) return found->second;
  const Buffer made{reinterpret_cast<float*>(allocate(options_.max_logit_rows * cols * 4)), cols};
  buffers_.emplace(key, made);
  return made;
}

Buffer Circuit::bf16_logit_buffer(std::string_view key, int64_t cols) {
  return {logit_buffer(key, (cols + 1) / 2).data, cols, RowType::kBf16};
}

int32_t* Circuit::int_buffer(std::string_view key, int64_t cols) {
  const auto found = int_buffers_.find(key);
  if (found != int_buffers_.end()) return found->second;
  int32_t* made = reinterpret_cast<int32_t*>(allocate(options_.max_rows * cols * 4));
  int_buffers_.emplace(key, made);
  return made;
}

const int32_t* Circuit::find_int_buffer(std::string_view key) const {
  const auto found = int_buffers_.find(key);
  return found == int_buffers_.end() ? nullptr : found->second;
}

void Circuit::add(std::unique_ptr<BoundOp> op, Buffer output) { ops_.push_back({std::move(op), output}); }

namespace {

// The least of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ... that is not below `n`.
int32_t bucket(int32_t n) {
  if (n <= 8) return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(n)));
  const auto power = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(n - 1)));
  return n <= power + power / 2 ? power + power / 2 : 2 * power;
}

// A graph serves every decode step with as many rows or a few less, and contexts up to the next power of two.
StepBounds graph_bounds(const StepBounds& step, const CompileOptions& options) {
  const int32_t rows = std::min(bucket(step.rows), options.max_rows);
  return {.rows = rows,
          .spans = rows,
          .logit_rows = std::min(bucket(step.logit_rows), options.max_logit_rows),
          .longest_span = 1,
          .longest_context = static_cast<int64_t>(
              std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(step.longest_context, kShortestGraphContext))))};
}

bool equal(const StepBounds& a, const StepBounds& b) {
  return a.rows == b.rows && a.spans == b.spans && a.logit_rows == b.logit_rows && a.longest_span == b.longest_span &&
         a.longest_context == b.longest_context;
}

}  // namespace

void Circuit::enqueue(const StepBounds& bounds) {
  for (Entry& entry : ops_) static_cast<CudaOp&>(*entry.op).enqueue(bounds);
}

int64_t Circuit::weight_bytes(int32_t rows) const {
  int64_t bytes = 0;
  for (const Entry& entry : ops_) bytes += entry.op->cost(rows, rows - 1).weight_bytes;
  return bytes;
}

void Circuit::run_on(CudaDevice& device, const StepView& step, StepObserver* observer) {
  device.stage(step);
  const StepBounds bounds = CudaDevice::bounds_of(step);
  if (observer != nullptr) {
    for (Entry& entry : ops_) {
      static_cast<CudaOp&>(*entry.op).enqueue(bounds);
      if (device.synchronize()) observer->after(*entry.op, entry.output);
    }
    return;
  }
  StepCounters& counters = device.counters();
  if (!options_.graphs || bounds.longest_span != 1) {
    counters.weight_bytes_read += weight_bytes(bounds.rows);
    return enqueue(bounds);
  }
  if (graph_generation_ != device.generation()) graphs_.clear();
  graph_generation_ = device.generation();
  const StepBounds wanted = graph_bounds(bounds, options_);
  for (const Graph& graph : graphs_) {
    if (!equal(graph.bounds, wanted)) continue;
    counters.weight_bytes_read += graph.weight_bytes;
    return device.launch_graph(graph.number);
  }
  device.begin_capture();
  enqueue(wanted);
  const int number = device.end_capture();
  if (number < 0) return;
  graphs_.push_back({wanted, number, weight_bytes(bounds.rows)});
  counters.weight_bytes_read += graphs_.back().weight_bytes;
  device.launch_graph(number);
}

void Circuit::run(const StepView& step, StepObserver* observer) {
  if (device_.is_cuda()) return run_on(device_.cuda(), step, observer);
  for (Entry& entry : ops_) {
    entry.op->run(step);
    if (observer != nullptr) observer->after(*entry.op, entry.output);
  }
}

}  // namespace weir
