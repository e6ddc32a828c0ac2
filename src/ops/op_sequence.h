// Ops one after the other as one entry of a circuit: what devices without a kernel for the whole run instead.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/bound_op.h"

namespace weir {

class OpSequence final : public BoundOp {
 public:
  OpSequence(std::string name, std::vector<std::unique_ptr<BoundOp>> ops)
      : BoundOp(std::move(name)), ops_(std::move(ops)) {}

  void run(const StepView& step) override {
    for (const auto& op : ops_) op->run(step);
  }

  Cost cost(int32_t rows, int64_t position) const override {
    Cost cost;
    for (const auto& op : ops_) cost += op->cost(rows, position);
    return cost;
  }

 private:
  std::vector<std::unique_ptr<BoundOp>> ops_;
};

}  // namespace weir
