#include <utility>

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/activation/activation.h"
#include "ops/activation/element_cuda.cuh"
#include "ops/cuda_op.h"
#include "ops/quads_cuda.cuh"

namespace weir {
namespace {

using namespace cuda;

template <ElementwiseKind kKind, bool kAligned>
__global__ void __launch_bounds__(kRowThreads) elementwise_cuda(const StepView* step, const ElementwiseArgs a) {
  const int64_t rows = row_count(*step, a.rows);  // staged before the first launch of the step
  // The next kernel starts when these blocks have ended: a few multiprocessors have them all, on which it would have no
  // block, and two on others (measured).
  ptx::wait_for_previous();
  const int64_t first = 4 * (int64_t{blockIdx.x} * kRowThreads + threadIdx.x);
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float4 u{0.f, 0.f, 0.f, 0.f};
    if constexpr (kKind == ElementwiseKind::kGateRow) {
      const float gate = math::sigmoid(a.u[row * a.u_stride]);
      u = float4{gate, gate, gate, gate};
    }
    for (int64_t k = first; k < a.size; k += 4 * int64_t{gridDim.x} * kRowThreads) {
      const int64_t live = a.size - k;
      const float4 g = load_quad<kAligned>(a.g + row * a.g_stride + k, live);
      if constexpr (!is_unary(kKind) && kKind != ElementwiseKind::kGateRow) {
        u = load_quad<kAligned>(a.u + row * a.u_stride + k, live);
      }
      const float4 y = each([&](float p, float q) { return element<kKind>(p, q, a.beta, a.linear_beta); }, g, u);
      store_quad<kAligned>(a.y, a.y_type, row * a.y_stride + k, y, live);
    }
  }
}

class ElementwiseCudaOp final : public CudaOp {
 public:
  ElementwiseCudaOp(CudaDevice& device, std::string name, const ElementwiseArgs& args)
      : CudaOp(device, std::move(name)), args_(args) {
    aligned_ = whole_quads({args.g, args.y}, {args.size, args.g_stride, args.y_stride});
    if (!is_unary(args.kind) && args.kind != ElementwiseKind::kGateRow) {
      aligned_ = aligned_ && whole_quads({args.u}, {args.u_stride});
    }
  }

  void enqueue(const StepBounds& bounds) override {
    const int64_t rows = most_rows(bounds, args_.rows);
    if (rows == 0) return;
    with_kind(args_.kind, [&]<ElementwiseKind kKind>() {
      launch(device(), {.grid = row_grid(device(), rows, (args_.size + 3) / 4), .block = kRowThreads, .overlap = true},
             aligned_ ? elementwise_cuda<kKind, true> : elementwise_cuda<kKind, false>, device().step(), args_);
    });
  }

  Cost cost(int32_t rows, int64_t) const override { return elementwise_cost(args_, rows); }

 private:
  ElementwiseArgs args_;
  bool aligned_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_elementwise_cuda(CudaDevice& device, std::string name, const ElementwiseArgs& args) {
  return std::make_unique<ElementwiseCudaOp>(device, std::move(name), args);
}

}  // namespace weir
