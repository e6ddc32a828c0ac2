// FP32 products of experts (moe.h, "On CUDA", f32): the bits of the CPU. Half a warp takes an output of a pair; lane i
// of it is the i-th of the sixteen sums.
#include "device/cuda/ptx.h"
#include "ops/linear/dequant_cuda.cuh"
#include "ops/moe/moe_cuda.cuh"

namespace weir {
namespace {

constexpr int kLanes = 16;
constexpr int kThreads = 256;
constexpr int kOutputs = kThreads / kLanes;  // of a block at a time

// Row o of a matrix times x, in lane 0 of the half.
__device__ float dot(const WeightView& weight, int64_t o, const float* x, int lane) {
  const int64_t padded = (weight.in + kLanes - 1) / kLanes * kLanes;
  float sum = 0;
  for (int64_t k = lane; k < padded; k += kLanes) {
    const bool there = k < weight.in;
    sum = math::fma(there ? weight_value(weight, o, k) : 0.f, there ? x[k] : 0.f, sum);
  }
#pragma unroll
  for (int half = kLanes / 2; half >= 1; half /= 2) sum = sum + __shfl_down_sync(cuda::kAllLanes, sum, half, kLanes);
  return sum;
}

struct PlainArgs {
  const ExpertWeights* experts = nullptr;
  const int32_t* ids = nullptr;
  int32_t top_k = 0;
  int64_t inter = 0, out = 0;
  GluFunction act;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* h = nullptr;  // [pairs, inter]
  float* z = nullptr;  // [pairs, out]
  const StepView* step = nullptr;
};

// Pairs are numbered by row and slot. A half whose output is beyond the last computes the last again, since the lanes
// of a warp exchange sums together.
struct Place {
  int64_t pair, o;
  int lane;
  bool there;

  __device__ explicit Place(int64_t outputs)
      : pair(blockIdx.x), o(int64_t{blockIdx.y} * kOutputs + threadIdx.x / kLanes) {
    lane = static_cast<int>(threadIdx.x) % kLanes;
    there = o < outputs && lane == 0;
    o = o < outputs ? o : outputs - 1;
  }
};

__global__ void __launch_bounds__(kThreads) plain_gate_up(const __grid_constant__ PlainArgs args) {
  cuda::ptx::wait_for_previous();
  const Place at(args.inter);
  if (at.pair >= int64_t{args.step->rows} * args.top_k) return;
  const int64_t expert = args.ids[at.pair];
  const float* x = args.x + at.pair / args.top_k * args.x_stride;
  float gate = dot(args.experts[expert].gate, at.o, x, at.lane);
  float up = dot(args.experts[expert].up, at.o, x, at.lane);
  if (!at.there) return;
  if (args.gate_bias != nullptr) {
    gate = gate + args.gate_bias[expert * args.inter + at.o];
    up = up + args.up_bias[expert * args.inter + at.o];
  }
  args.h[at.pair * args.inter + at.o] = glu(args.act, gate, up);
}

__global__ void __launch_bounds__(kThreads) plain_down(const __grid_constant__ PlainArgs args) {
  cuda::ptx::wait_for_previous();
  const Place at(args.out);
  if (at.pair >= int64_t{args.step->rows} * args.top_k) return;
  const int64_t expert = args.ids[at.pair];
  const float z = dot(args.experts[expert].down, at.o, args.h + at.pair * args.inter, at.lane);
  if (!at.there) return;
  args.z[at.pair * args.out + at.o] = args.down_bias == nullptr ? z : z + args.down_bias[expert * args.out + at.o];
}

}  // namespace

void multiply_plain(CudaDevice& device, int32_t rows, const MoeArgs& args, const ExpertWeights* experts, float* h,
                    float* z) {
  const PlainArgs plain{.experts = experts,
                        .ids = args.ids,
                        .top_k = static_cast<int32_t>(args.top_k),
                        .inter = args.inter,
                        .out = args.out,
                        .act = args.act,
                        .gate_bias = args.gate_bias,
                        .up_bias = args.up_bias,
                        .down_bias = args.down_bias,
                        .x = static_cast<const float*>(args.x),
                        .x_stride = args.x_stride,
                        .h = h,
                        .z = z,
                        .step = device.step()};
  const auto grid = [&](int64_t outputs) {
    return cuda::Extent(rows * args.top_k, (outputs + kOutputs - 1) / kOutputs, 1);
  };
  cuda::launch(device, {.grid = grid(args.inter), .block = kThreads}, plain_gate_up, plain);
  cuda::launch(device, {.grid = grid(args.out), .block = kThreads}, plain_down, plain);
}

}  // namespace weir
