// A thread for each log decay, then one for each beta.
#include "device/cuda/kernel.h"
#include "ops/cuda_op.h"
#include "ops/gate/gate.h"

namespace weir {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) kda_gate(KdaGateArgs args, const StepView* step) {
  const int64_t row = blockIdx.y, decays = args.heads * args.key_dim;
  if (row >= step->rows) return;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < decays) {
    const float a = args.a[i / args.key_dim];
    const float z = args.f[row * args.f_stride + i] + args.dt_bias[i];
    args.g[row * args.g_stride + i] = args.bounded ? args.lower_bound * math::sigmoid(a * z) : -(a * math::softplus(z));
  } else if (i < decays + args.heads) {
    const int64_t head = i - decays;
    args.beta[row * args.beta_stride + head] = math::sigmoid(args.beta_logit[row * args.beta_logit_stride + head]);
  }
}

class CudaKdaGate final : public CudaOp {
 public:
  CudaKdaGate(CudaDevice& device, std::string name, const KdaGateArgs& args)
      : CudaOp(device, std::move(name)), args_(args) {
    args_.a = device.upload(args.a, args.heads);
    args_.dt_bias = device.upload(args.dt_bias, args.heads * args.key_dim);
  }

  void enqueue(const StepBounds& bounds) override {
    const int64_t blocks = (args_.heads * (args_.key_dim + 1) + kThreads - 1) / kThreads;
    cuda::launch(device(), {.grid = {blocks, bounds.rows}, .block = kThreads}, kda_gate, args_, device().step());
  }

  Cost cost(int32_t rows, int64_t) const override { return kda_gate_cost(args_, rows); }

 private:
  KdaGateArgs args_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_kda_gate_cuda(CudaDevice& device, std::string name, const KdaGateArgs& args) {
  return std::make_unique<CudaKdaGate>(device, std::move(name), args);
}

}  // namespace weir
