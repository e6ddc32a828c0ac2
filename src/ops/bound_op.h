// An op bound to its weights, buffers and device: one entry of a circuit.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/step_view.h"

namespace weir {

// What a step of `rows` rows (of one sequence, the last at position `position`) must move and compute at least.
struct Cost {
  int64_t weight_bytes = 0;
  int64_t state_bytes = 0;  // pages and anchors read and written
  double flops = 0;         // a fused multiply-add counts two

  Cost& operator+=(const Cost& other) {
    weight_bytes += other.weight_bytes;
    state_bytes += other.state_bytes;
    flops += other.flops;
    return *this;
  }
};

// Elements of rows in memory: float, or on a GPU uint16_t with a BF16 number.
enum class RowType : uint8_t { kF32, kBf16 };

class BoundOp {
 public:
  explicit BoundOp(std::string name) : name_(std::move(name)) {}
  virtual ~BoundOp() = default;
  BoundOp(const BoundOp&) = delete;
  BoundOp& operator=(const BoundOp&) = delete;

  // Computes all rows of the step from the bound buffers into the bound buffers. Does not allocate, lock or throw.
  virtual void run(const StepView& step) = 0;
  virtual Cost cost(int32_t rows, int64_t position) const = 0;

  // Which tensor or part of the model this is, for `weir inspect --circuit`: "layers.3.attention".
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

}  // namespace weir
