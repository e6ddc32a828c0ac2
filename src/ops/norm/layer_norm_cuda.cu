#include <algorithm>
#include <utility>

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/cuda_op.h"
#include "ops/norm/layer_norm.h"
#include "ops/norm/unit_cuda.cuh"

namespace weir {
namespace {

using namespace cuda;

constexpr int kBlocksPerSm = 8;

template <class Shape>
__global__ void __launch_bounds__(Shape::kBlockThreads) layer_norm_kernel(const StepView* step, const LayerNormArgs a) {
  using U = Unit<Shape>;
  constexpr bool kWhole = Shape::kWholeQuads;
  __shared__ float partial[2][U::kWarps];
  const int size = static_cast<int>(a.size);
  ptx::wait_for_previous();
  ptx::let_next_start();
  int64_t row = static_cast<int64_t>(blockIdx.x) * Shape::kUnitsPerBlock + threadIdx.x / U::kThreads;
  for (; row < step->rows; row += static_cast<int64_t>(gridDim.x) * Shape::kUnitsPerBlock) {
    U x;
    x.load(a.x + row * a.x_stride, size);
    const float mean = x.sum(partial[0], [&](float4& s, int q) {
      s = each([](float t, float v) { return t + v; }, s, x.quad[q]);
    }) / static_cast<float>(size);
    U::each_quad(size, [&](int q, int k) {
      x.quad[q] = each([&](float v) { return v - mean; }, x.quad[q]);
      if constexpr (!kWhole) {  // what is beyond the end stays zero
        if (size - k < 2) x.quad[q].y = 0.f;
        if (size - k < 3) x.quad[q].z = 0.f;
        if (size - k < 4) x.quad[q].w = 0.f;
      }
    });
    const float r = 1.f / math::sqrt(x.sum_of_squares(partial[1]) / static_cast<float>(size) + a.eps);
    U::each_quad(size, [&](int q, int k) {
      const float4 y = each([&](float d, float w, float b) { return (d * r) * w + b; }, x.quad[q],
                            load_quad<kWhole>(a.weight + k, size - k), load_quad<kWhole>(a.bias + k, size - k));
      store_quad<kWhole>(a.y + row * a.y_stride + k, y, size - k);
    });
  }
}

class LayerNormCudaOp final : public CudaOp {
 public:
  LayerNormCudaOp(CudaDevice& device, std::string name, const LayerNormArgs& args)
      : CudaOp(device, std::move(name)), args_(args) {
    args_.weight = device.upload(args.weight, args.size);
    args_.bias = device.upload(args.bias, args.size);
    aligned_ = whole_quads({args.x, args.y}, {args.size, args.x_stride, args.y_stride});
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    with_unit_shape(args_.size, aligned_, [&]<class Shape>(Shape) {
      const int64_t blocks = (bounds.rows + Shape::kUnitsPerBlock - 1) / Shape::kUnitsPerBlock;
      launch(device(),
             {.grid = std::min<int64_t>(blocks, int64_t{kBlocksPerSm} * device().sm_count()),
              .block = Shape::kBlockThreads,
              .overlap = true},
             layer_norm_kernel<Shape>, device().step(), args_);
    });
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.weight_bytes = args_.size * 8, .flops = 7. * rows * static_cast<double>(args_.size)};
  }

 private:
  LayerNormArgs args_;
  bool aligned_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_layer_norm_cuda(CudaDevice& device, std::string name, const LayerNormArgs& args) {
  check_unit(name, args.size);
  return std::make_unique<LayerNormCudaOp>(device, std::move(name), args);
}

}  // namespace weir
