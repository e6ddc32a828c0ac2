// The sum over a row's pairs, the sum with its stream and the norm of that: a cluster of blocks for each row
// (unit_cluster_cuda.cuh), in which a thread has four neighbouring elements.
#include "device/cuda/ptx.h"
#include "ops/moe/moe_cuda.cuh"
#include "ops/norm/unit_cluster_cuda.cuh"
#include "ops/quads_cuda.cuh"

namespace weir {
namespace {

using namespace cuda;

struct SumNormCall {
  const float* z;
  const float* weights;
  const float* addend;
  int64_t addend_stride;
  int32_t top_k;
  int32_t size;
  float beta;
  const float* g;
  int64_t g_stride;
  float* sum;
  int64_t sum_stride;
  float eps;
  const float* norm_weight;
  void* normed;
  int64_t normed_stride;
  RowType normed_type;
};

constexpr int kMostWarps = 8;

struct SumNormShared {
  float4 x[kMostWarps][32];
  float4 squares[kUnitBlocks];
  uint64_t full;
};

__global__ void __launch_bounds__(32 * kMostWarps)
    sum_norm(const StepView* step, const __grid_constant__ SumNormCall a) {
  WEIR_DYNAMIC_SHARED(SumNormShared, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int64_t row = blockIdx.x / kUnitBlocks;
  const int at = 4 * (256 * warp + 32 * rank + lane);
  const bool there = at < a.size;
  const auto load = [&](const float* from) { return *reinterpret_cast<const float4*>(from + at); };
  if (threadIdx.x == 0) {  // racecheck begin: one thread's, in this order; the tool takes them for those of two lanes
    ptx::mbarrier_init(&shared->full, 1);
    ptx::mbarrier_fence_init();
    ptx::mbarrier_arrive_expect(&shared->full, kUnitBlocks * 16);
  }
  const float4 zeros{0.f, 0.f, 0.f, 0.f};
  const float4 factor = there ? load(a.norm_weight) : zeros;
  const int rows = step->rows;  // staged before the first launch of the step
  ptx::cluster_sync();
  ptx::wait_for_previous();
  ptx::let_next_start();
  if (row >= rows) return;

  float4 x = zeros;
  if (there) {
    const float4 g = load(a.g + row * a.g_stride);
    const float4 addend = a.addend == nullptr ? zeros : load(a.addend + row * a.addend_stride);
#pragma unroll 8
    for (int32_t k = 0; k < a.top_k; ++k) {
      const int64_t pair = row * a.top_k + k;
      const float weight = a.weights[pair];
      x = each([&](float v, float t) { return fmaf(weight, v, t); }, load(a.z + pair * a.size), x);
    }
    if (a.addend != nullptr) x = each([](float t, float v) { return t + v; }, x, addend);
    x = each([&](float v, float u) { return (v + u) * a.beta; }, g, x);
    *reinterpret_cast<float4*>(a.sum + row * a.sum_stride + at) = x;
  }
  shared->x[warp][lane] = x;
  __syncthreads();
  float4 s = zeros;
  for (int q = 0; q < warps; ++q) s = each([](float v, float t) { return fmaf(v, v, t); }, shared->x[q][lane], s);
  const float of_block = warp_sum((s.x + s.z) + (s.y + s.w));
  for (int to = warp; lane == 0 && to < kUnitBlocks; to += warps) {
    send(&shared->squares[rank], float4{of_block, 0.f, 0.f, 0.f}, &shared->full, to);
  }
  ptx::mbarrier_wait_cluster(&shared->full, 0);
  float squares[kUnitBlocks];
#pragma unroll
  for (int b = 0; b < kUnitBlocks; ++b) squares[b] = shared->squares[b].x;
  const float r = 1.f / math::sqrt(fold_blocks(squares) / static_cast<float>(a.size) + a.eps);
  if (!there) return;
  const float4 y = each([&](float v, float f) { return (v * r) * f; }, x, factor);
  store_quad<true>(a.normed, a.normed_type, row * a.normed_stride + at, y, 4);
}

}  // namespace

bool sum_norm_fits(const MoeArgs& args) {
  const auto& [add, norm] = *args.follows;
  return norm.kind == NormKind::kRms && args.out >= kLeastClusterSize && args.out <= kMostClusterSize &&
         whole_quads({args.addend, add.g, add.y, norm.y},
                     {args.out, args.addend_stride, add.g_stride, add.y_stride, norm.y_stride});
}

void sum_norm_pairs(CudaDevice& device, int32_t rows, const MoeArgs& args, const float* norm_weight, const float* z) {
  const auto& [add, norm] = *args.follows;
  const int64_t warps = (args.out + 1023) / 1024;
  launch(device,
         {.grid = kUnitBlocks * rows,
          .block = 32 * warps,
          .shared_bytes = sizeof(SumNormShared),
          .cluster = kUnitBlocks,
          .overlap = true},
         sum_norm, device.step(),
         SumNormCall{.z = z,
                     .weights = args.weights,
                     .addend = args.addend,
                     .addend_stride = args.addend_stride,
                     .top_k = static_cast<int32_t>(args.top_k),
                     .size = static_cast<int32_t>(args.out),
                     .beta = add.kind == ElementwiseKind::kAdd ? 1.f : add.beta,  // one changes no bit
                     .g = add.g,
                     .g_stride = add.g_stride,
                     .sum = static_cast<float*>(add.y),
                     .sum_stride = add.y_stride,
                     .eps = norm.eps,
                     .norm_weight = norm_weight,
                     .normed = norm.y,
                     .normed_stride = norm.y_stride,
                     .normed_type = norm.y_type});
}

}  // namespace weir
