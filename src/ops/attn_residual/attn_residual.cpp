#include "ops/attn_residual/attn_residual.h"

#include "base/error.h"

namespace weir {

namespace reference {
void attn_residual_row(const AttnResidualArgs& args, int64_t row);
}
namespace avx2 {
void attn_residual_row(const AttnResidualArgs& args, int64_t row);
}
namespace avx512 {
void attn_residual_row(const AttnResidualArgs& args, int64_t row);
}

AttnResidualKernel attn_residual_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::attn_residual_row;
    case KernelSet::kAvx2:
      return avx2::attn_residual_row;
    case KernelSet::kAvx512:
      return avx512::attn_residual_row;
  }
  return nullptr;
}

namespace {

class AttnResidualOp final : public BoundOp {
 public:
  AttnResidualOp(CpuDevice& device, std::string name, AttnResidualArgs args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(std::move(args)),
        kernel_(attn_residual_kernel(device.kernels())) {}

  void run(const StepView& step) override {
    if (step.rows == 0) return;
    device_.pool().parallel_for(step.rows, [&](int64_t row, int) { kernel_(args_, row); });
    device_.counters().weight_bytes_read += args_.size * 4;
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.weight_bytes = args_.size * 4,
            .flops = 6.0 * rows * static_cast<double>(args_.size) * static_cast<double>(args_.candidates.size())};
  }

 private:
  CpuDevice& device_;
  AttnResidualArgs args_;
  AttnResidualKernel kernel_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_attn_residual(Device& device, std::string name, AttnResidualArgs args) {
  if (args.candidates.empty() || args.candidates.size() > static_cast<size_t>(kMaxResidualCandidates)) {
    fail(name, ": attention residual over ", args.candidates.size(), " candidates; expected 1 to ",
         kMaxResidualCandidates);
  }
  if (args.size < 1) fail(name, ": attention residual on rows of ", args.size, " elements");
  if (args.stride < args.size || args.y_stride < args.size) {
    fail(name, ": attention residual on rows of ", args.size, " elements, but strides are ", args.stride, " and ",
         args.y_stride);
  }
  if (args.weight == nullptr || args.y == nullptr) fail(name, ": attention residual without weight or output");
  for (const float* candidate : args.candidates) {
    if (candidate == nullptr) fail(name, ": attention residual with a missing candidate");
    if (candidate == args.y) fail(name, ": the output of an attention residual may be none of its candidates");
  }
  if (device.is_cuda()) return bind_attn_residual_cuda(device.cuda(), std::move(name), std::move(args));
  return std::make_unique<AttnResidualOp>(device.cpu(), std::move(name), std::move(args));
}

}  // namespace weir
