#include "ops/gate/gate.h"

#include <utility>

#include "base/error.h"
#include "ops/gate/gate_kernel.h"

namespace weir {
namespace {

KdaGateHeads gate_heads(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::kda_gate_heads;
    case KernelSet::kAvx2:
      return avx2::kda_gate_heads;
    case KernelSet::kAvx512:
      return avx512::kda_gate_heads;
  }
  return reference::kda_gate_heads;
}

template <KdaGateHeads kHeads>
void whole_row(const KdaGateArgs& args, int64_t row) {
  kHeads(args, row, 0, args.heads);
}

void check(const std::string& name, const KdaGateArgs& args) {
  if (args.heads < 1 || args.key_dim < 1) {
    fail(name, ": gate: expected at least one head and one channel, found heads ", args.heads, ", key_dim ",
         args.key_dim);
  }
  // Sixteen steps must stay within e^80, or k e^-G of the delta rule leaves FP32.
  if (args.bounded && !(args.lower_bound >= -5.f && args.lower_bound < 0.f)) {
    fail(name, ": gate: expected a lower bound in [-5, 0), found ", args.lower_bound);
  }
  if (args.a == nullptr || args.dt_bias == nullptr || args.f == nullptr || args.beta_logit == nullptr ||
      args.g == nullptr || args.beta == nullptr) {
    fail(name, ": gate: a weight or buffer is missing");
  }
  if (args.f_stride < args.heads * args.key_dim || args.g_stride < args.heads * args.key_dim ||
      args.beta_logit_stride < args.heads || args.beta_stride < args.heads) {
    fail(name, ": gate: a row stride is shorter than its row");
  }
}

class KdaGate final : public BoundOp {
 public:
  KdaGate(CpuDevice& device, std::string name, const KdaGateArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), heads_(gate_heads(device.kernels())) {}

  void run(const StepView& step) override {
    const int64_t parts = (args_.heads + kHeadsPerItem - 1) / kHeadsPerItem;
    device_.pool().parallel_for(step.rows * parts, [&](int64_t item, int) {
      const int64_t begin = item % parts * kHeadsPerItem;
      const int64_t end = begin + kHeadsPerItem < args_.heads ? begin + kHeadsPerItem : args_.heads;
      heads_(args_, item / parts, begin, end);
    });
    device_.counters().weight_bytes_read += kda_gate_cost(args_, 0).weight_bytes;
  }

  Cost cost(int32_t rows, int64_t) const override { return kda_gate_cost(args_, rows); }

 private:
  static constexpr int64_t kHeadsPerItem = 16;  // 2,048 elements, some microseconds: worth handing to a thread

  CpuDevice& device_;
  KdaGateArgs args_;
  KdaGateHeads heads_;
};

}  // namespace

Cost kda_gate_cost(const KdaGateArgs& args, int32_t rows) {
  // An exponential counts like its polynomial, some twenty operations.
  return {.weight_bytes = args.heads * (args.key_dim + 1) * int64_t{sizeof(float)},
          .flops = 40. * rows * static_cast<double>(args.heads * args.key_dim)};
}

KdaGateKernel kda_gate_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return whole_row<reference::kda_gate_heads>;
    case KernelSet::kAvx2:
      return whole_row<avx2::kda_gate_heads>;
    case KernelSet::kAvx512:
      return whole_row<avx512::kda_gate_heads>;
  }
  return whole_row<reference::kda_gate_heads>;
}

std::unique_ptr<BoundOp> bind_kda_gate(Device& device, std::string name, const KdaGateArgs& args) {
  check(name, args);
  if (device.is_cuda()) return bind_kda_gate_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<KdaGate>(device.cpu(), std::move(name), args);
}

}  // namespace weir
