#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/cuda_op.h"
#include "ops/rope/rope.h"

namespace weir {
namespace {

using cuda::launch;

constexpr int kThreads = 128;
constexpr int kHeadsPerBlock = kThreads / 32;

__global__ void angles_kernel(const StepView* step, RopeAnglesArgs args) {
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const int64_t row = blockIdx.x;
  if (row >= step->rows) return;
  const float position = static_cast<float>(step->positions[static_cast<size_t>(row)]);
  for (int64_t i = threadIdx.x; i < args.pairs; i += kThreads) {
    const SinCos value = sin_cos(position * args.inv_freq[i]);
    args.cos[row * args.pairs + i] = value.cos * args.attention_factor;
    args.sin[row * args.pairs + i] = value.sin * args.attention_factor;
  }
}

// Rotates pair i of a head whose elements (a, b) are to be stored at `first` and `second`.
__device__ void rotate(const float* cos, const float* sin, int64_t i, float a, float b, float& first, float& second) {
  first = fmaf(a, cos[i], -(b * sin[i]));
  second = fmaf(b, cos[i], a * sin[i]);
}

// A warp for each head of a row.
__global__ void rope_kernel(const StepView* step, RopeArgs args) {
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const int64_t row = blockIdx.x;
  const int64_t head = blockIdx.y * kHeadsPerBlock + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= step->rows || head >= args.heads) return;
  float* x = args.x + row * args.x_stride + head * args.head_stride;
  const float* cos = args.cos + row * args.pairs;
  const float* sin = args.sin + row * args.pairs;
  if (args.pairing == RopePairing::kHalfSplit) {
    for (int64_t i = lane; i < args.pairs; i += 32)
      rotate(cos, sin, i, x[i], x[i + args.pairs], x[i], x[i + args.pairs]);
    return;
  }
  if (args.pairing == RopePairing::kInterleaved) {
    for (int64_t i = lane; i < args.pairs; i += 32) rotate(cos, sin, i, x[2 * i], x[2 * i + 1], x[2 * i], x[2 * i + 1]);
    return;
  }
  // Pairs land where others are read: all are read first.
  constexpr int kPerLane = kRopeMostReordered / 32;
  float a[kPerLane], b[kPerLane];
#pragma unroll
  for (int n = 0; n < kPerLane; ++n) {
    const int64_t i = lane + 32 * n;
    if (i < args.pairs) a[n] = x[2 * i], b[n] = x[2 * i + 1];
  }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kPerLane; ++n) {
    const int64_t i = lane + 32 * n;
    if (i < args.pairs) rotate(cos, sin, i, a[n], b[n], x[i], x[i + args.pairs]);
  }
}

class CudaRopeAngles final : public CudaOp {
 public:
  CudaRopeAngles(CudaDevice& device, std::string name, const RopeAnglesArgs& args)
      : CudaOp(device, std::move(name)), args_(args) {
    args_.inv_freq = device.upload(args.inv_freq, args.pairs);
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows > 0) {
      launch(device(), {.grid = bounds.rows, .block = kThreads, .overlap = true}, angles_kernel, device().step(),
             args_);
    }
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.flops = 45. * static_cast<double>(rows) * static_cast<double>(args_.pairs)};  // reduction and both series
  }

 private:
  RopeAnglesArgs args_;
};

class CudaRope final : public CudaOp {
 public:
  CudaRope(CudaDevice& device, std::string name, const RopeArgs& args) : CudaOp(device, std::move(name)), args_(args) {}

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const int64_t heads = (args_.heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
    launch(device(), {.grid = {bounds.rows, heads}, .block = kThreads, .overlap = true}, rope_kernel, device().step(),
           args_);
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.flops = 6. * static_cast<double>(rows) * static_cast<double>(args_.heads * args_.pairs)};
  }

 private:
  RopeArgs args_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_rope_angles_cuda(CudaDevice& device, std::string name, const RopeAnglesArgs& args) {
  return std::make_unique<CudaRopeAngles>(device, std::move(name), args);
}

std::unique_ptr<BoundOp> bind_rope_cuda(CudaDevice& device, std::string name, const RopeArgs& args) {
  return std::make_unique<CudaRope>(device, std::move(name), args);
}

}  // namespace weir
