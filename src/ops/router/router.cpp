#include "ops/router/router.h"

#include <algorithm>

#include "base/error.h"

namespace weir {

namespace reference {
void route_row(const RouterArgs& args, int64_t row, std::byte* scratch);
}
namespace avx2 {
void route_row(const RouterArgs& args, int64_t row, std::byte* scratch);
}
namespace avx512 {
void route_row(const RouterArgs& args, int64_t row, std::byte* scratch);
}

RouterKernel router_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::route_row;
    case KernelSet::kAvx2:
      return avx2::route_row;
    case KernelSet::kAvx512:
      return avx512::route_row;
  }
  return nullptr;
}

// Scores, choice keys, group keys (padded to whole vectors) and the best key of each 16 (to a multiple of 8).
int64_t router_scratch_bytes(int64_t experts) {
  const int64_t padded = (experts + 15) / 16 * 16;
  return 3 * padded * 4 + (padded / 16 + 7) * 4;
}

namespace {

constexpr int64_t kExpertsPerItem = 4096;  // logits; about 4 us of work, against 1 to 2 us for waking a thread

class RouterOp final : public BoundOp {
 public:
  RouterOp(CpuDevice& device, std::string name, const RouterArgs& args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        kernel_(router_kernel(device.kernels())),
        rows_per_item_(std::max<int64_t>(kExpertsPerItem / args.experts, 1)) {
    device.reserve_scratch(router_scratch_bytes(args.experts));
  }

  void run(const StepView& step) override {
    if (step.rows == 0) return;
    device_.pool().parallel_for((step.rows + rows_per_item_ - 1) / rows_per_item_, [&](int64_t item, int thread) {
      const int64_t end = std::min<int64_t>((item + 1) * rows_per_item_, step.rows);
      for (int64_t row = item * rows_per_item_; row < end; ++row) kernel_(args_, row, device_.scratch(thread));
    });
    device_.counters().weight_bytes_read += bias_bytes();
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.weight_bytes = bias_bytes(), .flops = 28.0 * rows * static_cast<double>(args_.experts)};
  }

 private:
  int64_t bias_bytes() const { return args_.bias == nullptr ? 0 : args_.experts * 4; }

  CpuDevice& device_;
  RouterArgs args_;
  RouterKernel kernel_;
  int64_t rows_per_item_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_router(Device& device, std::string name, const RouterArgs& args) {
  if (args.experts < 1 || args.top_k < 1) {
    fail(name, ": router of ", args.experts, " experts, top ", args.top_k, "; both must be positive");
  }
  if (args.groups < 1 || args.experts % args.groups != 0) {
    fail(name, ": ", args.experts, " experts cannot be cut into ", args.groups, " equal groups");
  }
  if (args.topk_group < 1 || args.topk_group > args.groups) {
    fail(name, ": router keeps ", args.topk_group, " of ", args.groups, " groups");
  }
  const int64_t available = args.groups > 1 ? args.experts / args.groups * args.topk_group : args.experts;
  if (args.top_k > available) {
    fail(name, ": top ", args.top_k, " of ", available, " experts that can be chosen");
  }
  if (args.logits == nullptr || args.ids == nullptr || args.weights == nullptr) {
    fail(name, ": router without logits or outputs");
  }
  if (args.score == RouterScore::kSoftmaxOfChosen && !args.renormalize) {
    fail(name, ": a softmax over the chosen experts has sum 1; expected renormalize");
  }
  if (args.logits_stride < args.experts) {
    fail(name, ": router of ", args.experts, " experts, but the stride of the logits is ", args.logits_stride);
  }
  if (device.is_cuda()) return bind_router_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<RouterOp>(device.cpu(), std::move(name), args);
}

}  // namespace weir
