#include "ops/activation/activation.h"

#include "base/error.h"
#include "ops/row_tiles.h"

namespace weir {

namespace reference {
void elementwise(ElementwiseKind kind, float beta, float linear_beta, const float* g, const float* u, float* y,
                 int64_t n);
}
namespace avx2 {
void elementwise(ElementwiseKind kind, float beta, float linear_beta, const float* g, const float* u, float* y,
                 int64_t n);
}
namespace avx512 {
void elementwise(ElementwiseKind kind, float beta, float linear_beta, const float* g, const float* u, float* y,
                 int64_t n);
}

ElementwiseKernel elementwise_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::elementwise;
    case KernelSet::kAvx2:
      return avx2::elementwise;
    case KernelSet::kAvx512:
      return avx512::elementwise;
  }
  return nullptr;
}

namespace {

// About 4 us of work, against 1 to 2 us for waking a thread.
int64_t elements_per_item(ElementwiseKind kind) {
  switch (kind) {
    case ElementwiseKind::kSitu:
      return 4096;
    case ElementwiseKind::kSwiGlu:
    case ElementwiseKind::kGeGlu:
    case ElementwiseKind::kClampedSwiGlu:
    case ElementwiseKind::kGate:
    case ElementwiseKind::kSoftCap:
      return 8192;
    case ElementwiseKind::kAdd:
    case ElementwiseKind::kAddScaled:
    case ElementwiseKind::kGateRow:
    case ElementwiseKind::kCopy:
      return 32768;
  }
  return 1;
}

double flops_per_element(ElementwiseKind kind) {
  switch (kind) {
    case ElementwiseKind::kSitu:
      return 90;  // three exponentials of about 22, two short polynomials, divisions
    case ElementwiseKind::kSoftCap:
      return 33;
    case ElementwiseKind::kGeGlu:
    case ElementwiseKind::kClampedSwiGlu:
      return 32;
    case ElementwiseKind::kSwiGlu:
      return 27;
    case ElementwiseKind::kGate:
      return 26;
    case ElementwiseKind::kAddScaled:
      return 2;
    case ElementwiseKind::kAdd:
    case ElementwiseKind::kGateRow:
      return 1;
    case ElementwiseKind::kCopy:
      return 0;
  }
  return 0;
}

class ElementwiseOp final : public BoundOp {
 public:
  ElementwiseOp(CpuDevice& device, std::string name, const ElementwiseArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), kernel_(elementwise_kernel(device.kernels())) {}

  void run(const StepView& step) override {
    const ElementwiseArgs& a = args_;
    const RowTiles tiles(row_count(step, a.rows), a.size, elements_per_item(a.kind));
    device_.pool().parallel_for(tiles.items(), [&](int64_t item, int) {
      tiles.each(item, [&](int64_t row, int64_t begin, int64_t end) {
        const float* u = is_unary(a.kind) ? nullptr : a.u + row * a.u_stride;
        if (u != nullptr && a.kind != ElementwiseKind::kGateRow) u += begin;
        kernel_(a.kind, a.beta, a.linear_beta, a.g + row * a.g_stride + begin, u,
                static_cast<float*>(a.y) + row * a.y_stride + begin, end - begin);
      });
    });
  }

  Cost cost(int32_t rows, int64_t) const override { return elementwise_cost(args_, rows); }

 private:
  CpuDevice& device_;
  ElementwiseArgs args_;
  ElementwiseKernel kernel_;
};

}  // namespace

Cost elementwise_cost(const ElementwiseArgs& args, int32_t rows) {
  return {.flops = flops_per_element(args.kind) * rows * static_cast<double>(args.size)};
}

std::unique_ptr<BoundOp> bind_elementwise(Device& device, std::string name, const ElementwiseArgs& args) {
  if (args.size < 1) fail(name, ": elementwise op on rows of ", args.size, " elements");
  if (args.g == nullptr || args.y == nullptr || (!is_unary(args.kind) && args.u == nullptr)) {
    fail(name, ": elementwise op without input or output");
  }
  check_output(device, name, args.y_type, args.y, args.g);
  check_output(device, name, args.y_type, args.y, args.u);
  const int64_t u_size = is_unary(args.kind) ? 0 : args.kind == ElementwiseKind::kGateRow ? 1 : args.size;
  if (args.g_stride < args.size || args.y_stride < args.size || args.u_stride < u_size) {
    fail(name, ": elementwise op on rows of ", args.size, " elements, but strides are ", args.g_stride, ", ",
         args.u_stride, " and ", args.y_stride);
  }
  if (args.kind == ElementwiseKind::kSitu && !(args.beta > 0 && args.linear_beta >= 0)) {
    fail(name, ": SiTU needs beta > 0 and linear beta >= 0, found ", args.beta, " and ", args.linear_beta);
  }
  if (args.kind == ElementwiseKind::kClampedSwiGlu && !(args.linear_beta > 0)) {
    fail(name, ": a clamped SwiGLU needs a limit (linear beta) > 0, found ", args.linear_beta);
  }
  if (args.kind == ElementwiseKind::kSoftCap && !(args.beta > 0)) {
    fail(name, ": a soft cap needs beta > 0, found ", args.beta);
  }
  if (device.is_cuda()) return bind_elementwise_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<ElementwiseOp>(device.cpu(), std::move(name), args);
}

}  // namespace weir
