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

// What is read: x, x with a gate, or the sum (g + u) * beta that x is, which is stored.
enum class NormInput { kPlain, kGated, kSum };

// The code is short, since it is seldom still in the instruction cache when its turn comes: kinds without a gate differ
// in the factors alone, and those that a kind lacks are ones.
template <class Shape, NormInput kInput>
__global__ void __launch_bounds__(Shape::kBlockThreads)
    norm_kernel(const StepView* step, const NormArgs a, const ElementwiseArgs add) {
  using U = Unit<Shape>;
  constexpr bool kWhole = Shape::kWholeQuads;
  __shared__ float partial[2][U::kWarps];
  const int size = static_cast<int>(a.size);
  const float mean_of = a.kind == NormKind::kL2 ? 1.f : static_cast<float>(size);
  U factor, x;
  if (a.weight != nullptr) {
    factor.load(a.weight, size);
  } else {
    const float one = a.kind == NormKind::kL2 ? a.scale : 1.f;
#pragma unroll
    for (int q = 0; q < U::kQuads; ++q) factor.quad[q] = float4{one, one, one, one};
  }
  const int64_t units = row_count(*step, a.rows) * a.groups;  // staged before the first launch of the step
  ptx::wait_for_previous();
  ptx::let_next_start();
  int64_t unit = static_cast<int64_t>(blockIdx.x) * Shape::kUnitsPerBlock + threadIdx.x / U::kThreads;
  for (int turn = 0; unit < units; unit += static_cast<int64_t>(gridDim.x) * Shape::kUnitsPerBlock, turn ^= 1) {
    const int64_t row = kInput == NormInput::kSum ? unit : unit / a.groups;
    const int64_t at = kInput == NormInput::kSum ? 0 : (unit - row * a.groups) * a.size;
    if constexpr (kInput == NormInput::kSum) {
      U other;
      x.load(add.g + row * add.g_stride, size);
      other.load(add.u + row * add.u_stride, size);
      U::each_quad(size, [&](int q, int k) {
        x.quad[q] = each([&](float g, float u) { return (g + u) * add.beta; }, x.quad[q], other.quad[q]);
        store_quad<kWhole>(static_cast<float*>(add.y) + row * add.y_stride + k, x.quad[q], size - k);
      });
    } else {
      x.load(a.x + row * a.x_stride + at, size);
    }
    const float ss = x.sum_of_squares(partial[turn]);
    const float r = 1.f / math::sqrt(ss / mean_of + a.eps);
    U::each_quad(size, [&](int q, int k) {
      float4 y = each([&](float v, float f) { return (v * r) * f; }, x.quad[q], factor.quad[q]);
      if constexpr (kInput == NormInput::kGated) {
        y = gated(a.kind, y, load_quad<kWhole>(a.gate + row * a.gate_stride + at + k, size - k));
      }
      store_quad<kWhole>(a.y, a.y_type, row * a.y_stride + at + k, y, size - k);
    });
  }
}

class NormCudaOp final : public CudaOp {
 public:
  NormCudaOp(CudaDevice& device, std::string name, const NormArgs& args, const ElementwiseArgs* add)
      : CudaOp(device, std::move(name)), args_(args), adds_(add != nullptr) {
    if (adds_) add_ = *add;
    const bool weighs = args.kind != NormKind::kL2 && args.kind != NormKind::kRmsPlain;
    weight_bytes_ = weighs ? args.size * 4 : 0;
    args_.weight = weighs ? device.upload(args.weight, args.size) : nullptr;
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
             adds_                       ? norm_kernel<Shape, NormInput::kSum>
             : norm_has_gate(args_.kind) ? norm_kernel<Shape, NormInput::kGated>
                                         : norm_kernel<Shape, NormInput::kPlain>,
             device().step(), args_, add_);
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
