#include "ops/norm/layer_norm.h"

#include <utility>

#include "base/error.h"

namespace weir {

namespace reference {
void layer_norm_row(const LayerNormArgs& args, int64_t row);
}
namespace avx2 {
void layer_norm_row(const LayerNormArgs& args, int64_t row);
}
namespace avx512 {
void layer_norm_row(const LayerNormArgs& args, int64_t row);
}

LayerNormKernel layer_norm_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::layer_norm_row;
    case KernelSet::kAvx2:
      return avx2::layer_norm_row;
    case KernelSet::kAvx512:
      return avx512::layer_norm_row;
  }
  return reference::layer_norm_row;
}

namespace {

class LayerNorm final : public BoundOp {
 public:
  LayerNorm(CpuDevice& device, std::string name, const LayerNormArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), kernel_(layer_norm_kernel(device.kernels())) {}

  void run(const StepView& step) override {
    device_.pool().parallel_for(step.rows, [&](int64_t row, int) { kernel_(args_, row); });
    if (step.rows > 0) device_.counters().weight_bytes_read += args_.size * 8;
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.weight_bytes = args_.size * 8, .flops = 7. * rows * static_cast<double>(args_.size)};
  }

 private:
  CpuDevice& device_;
  LayerNormArgs args_;
  LayerNormKernel kernel_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_layer_norm(Device& device, std::string name, const LayerNormArgs& args) {
  if (args.size < 1) fail(name, ": expected at least one element to normalise, found ", args.size);
  if (args.weight == nullptr || args.bias == nullptr) fail(name, ": expected a weight and a bias, found none");
  if (args.x == nullptr || args.y == nullptr || args.x_stride < args.size || args.y_stride < args.size) {
    fail(name, ": expected rows of at least ", args.size, " elements");
  }
  if (device.is_cuda()) return bind_layer_norm_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<LayerNorm>(device.cpu(), std::move(name), args);
}

}  // namespace weir
