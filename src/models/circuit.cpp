#include "models/circuit.h"

#include <utility>

namespace weir {

Mapping& Circuit::allocate(int64_t bytes) {
  buffer_bytes_ += bytes;
  return memory_.emplace_back(bytes);
}

Buffer Circuit::buffer(std::string_view key, int64_t cols) {
  const auto found = buffers_.find(key);
  if (found != buffers_.end() && found->second.cols >= cols) return {found->second.data, cols};
  const Buffer made{allocate(options_.max_rows * cols * 4).as<float>().data(), cols};
  buffers_.insert_or_assign(std::string(key), made);
  return made;
}

Buffer Circuit::logit_buffer(std::string_view key, int64_t cols) {
  const auto found = buffers_.find(key);
  if (found != buffers_.end()) return found->second;
  const Buffer made{allocate(options_.max_logit_rows * cols * 4).as<float>().data(), cols};
  buffers_.emplace(key, made);
  return made;
}

int32_t* Circuit::int_buffer(std::string_view key, int64_t cols) {
  const auto found = int_buffers_.find(key);
  if (found != int_buffers_.end()) return found->second;
  int32_t* made = allocate(options_.max_rows * cols * 4).as<int32_t>().data();
  int_buffers_.emplace(key, made);
  return made;
}

const int32_t* Circuit::find_int_buffer(std::string_view key) const {
  const auto found = int_buffers_.find(key);
  return found == int_buffers_.end() ? nullptr : found->second;
}

void Circuit::add(std::unique_ptr<BoundOp> op, Buffer output) { ops_.push_back({std::move(op), output}); }

void Circuit::run(const StepView& step, StepObserver* observer) {
  for (Entry& entry : ops_) {
    entry.op->run(step);
    if (observer != nullptr) observer->after(*entry.op, entry.output);
  }
}

}  // namespace weir
