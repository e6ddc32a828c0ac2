#include <algorithm>
#include <utility>

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/cuda_op.h"
#include "ops/norm/add_norm.h"
#include "ops/norm/norm.h"
#include "ops/norm/unit_cuda.cuh"

namespace weir {
namespace {

using namespace cuda;

constexpr int kBlocksPerSm = 8;

__device__ __forceinline__ float4 gated(NormKind kind, float4 y, float4 gate) {
  if (kind == NormKind::kRmsGated) return each([](float v, float g) { return v * math::sigmoid(g); }, y, gate);
  return each([](float v, float g) { return v * math::silu(g); }, y, gate);
}

// With kAdd, x is not read but formed, (g + u) * beta, and stored.
template <class Shape, bool kAdd>
__global__ void __launch_bounds__(Shape::kBlockThreads)
    norm_kernel(const StepView* step, const NormArgs a, const ElementwiseArgs add) {
  using U = Unit<Shape>;
  constexpr bool kWhole = Shape::kWholeQuads;
  __shared__ float partial[2][U::kWarps];
  const int size = static_cast<int>(a.size);
  U weight, x;
  if (a.weight != nullptr) weight.load(a.weight, size);
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int64_t units = row_count(*step, a.rows) * a.groups;
  int64_t unit = static_cast<int64_t>(blockIdx.x) * Shape::kUnitsPerBlock + threadIdx.x / U::kThreads;
  for (int turn = 0; unit < units; unit += static_cast<int64_t>(gridDim.x) * Shape::kUnitsPerBlock, turn ^= 1) {
    const int64_t row = unit / a.groups;
    const int64_t at = (unit - row * a.groups) * a.size;
    if constexpr (kAdd) {
      U other;
      x.load(add.g + row * add.g_stride, size);
      other.load(add.u + row * add.u_stride, size);
      U::each_quad(size, [&](int q, int k) {
        x.quad[q] = each([&](float g, float u) { return (g + u) * add.beta; }, x.quad[q], other.quad[q]);
        store_quad<kWhole>(add.y + row * add.y_stride + k, x.quad[q], size - k);
      });
    } else {
      x.load(a.x + row * a.x_stride + at, size);
    }
    const float ss = x.sum_of_squares(partial[turn]);
    const float r = 1.f / math::sqrt((a.kind == NormKind::kL2 ? ss : ss / static_cast<float>(size)) + a.eps);
    U::each_quad(size, [&](int q, int k) {
      float4 y = each([&](float v) { return v * r; }, x.quad[q]);
      if (a.kind == NormKind::kL2) {
        y = each([&](float v) { return v * a.scale; }, y);
      } else if (a.kind != NormKind::kRmsPlain) {
        y = each([](float v, float w) { return v * w; }, y, weight.quad[q]);
      }
      if (norm_has_gate(a.kind)) {
        y = gated(a.kind, y, load_quad<kWhole>(a.gate + row * a.gate_stride + at + k, size - k));
      }
      store_quad<kWhole>(a.y + row * a.y_stride + at + k, y, size - k);
    });
  }
}

class NormCudaOp final : public CudaOp {
 public:
  NormCudaOp(CudaDevice& device, std::string name, const NormArgs& args, const ElementwiseArgs* add)
      : CudaOp(device, std::move(name)), args_(args), adds_(add != nullptr) {
    if (adds_) add_ = *add;
    weight_bytes_ = args.weight == nullptr ? 0 : args.size * 4;
    args_.weight = device.upload(args.weight, args.size);
    aligned_ = whole_quads(
        {args.x, args.gate, args.y, args_.weight, add_.g, add_.u, add_.y},
        {args.size, args.x_stride, args.gate_stride, args.y_stride, add_.g_stride, add_.u_stride, add_.y_stride});
  }

  void enqueue(const StepBounds& bounds) override {
    const int64_t units = most_rows(bounds, args_.rows) * args_.groups;
    if (units == 0) return;
    with_unit_shape(args_.size, aligned_, [&]<class Shape>(Shape) {
      const int64_t blocks = (units + Shape::kUnitsPerBlock - 1) / Shape::kUnitsPerBlock;
      launch(device(),
             {.grid = std::min<int64_t>(blocks, int64_t{kBlocksPerSm} * device().sm_count()),
              .block = Shape::kBlockThreads,
              .overlap = true},
             adds_ ? norm_kernel<Shape, true> : norm_kernel<Shape, false>, device().step(), args_, add_);
    });
  }

  Cost cost(int32_t rows, int64_t) const override {
    const double elements = static_cast<double>(rows) * static_cast<double>(args_.groups * args_.size);
    return {.weight_bytes = weight_bytes_, .flops = (adds_ ? 5 : 4) * elements};
  }

 private:
  NormArgs args_;
  ElementwiseArgs add_;
  bool adds_;
  bool aligned_ = false;
  int64_t weight_bytes_ = 0;
};

}  // namespace

std::unique_ptr<BoundOp> bind_norm_cuda(CudaDevice& device, std::string name, const NormArgs& args) {
  check_unit(name, args.size);
  return std::make_unique<NormCudaOp>(device, std::move(name), args, nullptr);
}

std::unique_ptr<BoundOp> bind_add_norm_cuda(CudaDevice& device, std::string name, const ElementwiseArgs& add,
                                            const NormArgs& norm) {
  check_unit(name, norm.size);
  ElementwiseArgs sum = add;
  if (sum.kind == ElementwiseKind::kAdd) sum.beta = 1;  // a product that changes no bit
  return std::make_unique<NormCudaOp>(device, std::move(name), norm, &sum);
}

}  // namespace weir
