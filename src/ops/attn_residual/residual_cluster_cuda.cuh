// Attention residuals with few rows: a cluster of blocks for each, so that its bytes come through several
// multiprocessors at once. Sums are those of Unit (unit_cuda.cuh) for 256 threads: block b has what warp b has there,
// 128 of each 1024 elements. In it a warp takes candidates for the scores and one 128 of elements for the mixture.
#pragma once

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/attn_residual/residual_call_cuda.cuh"
#include "ops/norm/unit_cluster_cuda.cuh"
#include "ops/quads_cuda.cuh"

namespace weir {

using cuda::fold_blocks;
using cuda::kUnitBlocks;
using cuda::send;

inline constexpr int kMostClusterCandidates = 16;

// Shared memory of a block.
struct ResidualShared {
  float4 scores[kUnitBlocks][kMostClusterCandidates];  // of each block's elements: squares, products
  float4 squares[kUnitBlocks];                         // of the mixture, likewise
  float4 y[kUnitBlocks][32];
  uint64_t scores_full, squares_full;
  uint64_t unused[2];
  // candidates: [count][quads][32] float4

  __device__ float4* candidates() { return reinterpret_cast<float4*>(this + 1); }
};
inline int64_t residual_shared_bytes(int count, int quads) {
  return static_cast<int64_t>(sizeof(ResidualShared)) + int64_t{count} * quads * 512;
}

// Sums of the squares of a lane's elements, and of their products with the weights.
template <int kQuads>
__device__ __forceinline__ float2 squares_and_products(const float4 (&v)[kQuads], const float4 (&weight)[kQuads]) {
  float4 s{0.f, 0.f, 0.f, 0.f}, d{0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    s = cuda::each([](float x, float t) { return fmaf(x, x, t); }, v[q], s);
    d = cuda::each([](float x, float w, float t) { return fmaf(x, w, t); }, v[q], weight[q], d);
  }
  return {cuda::warp_sum((s.x + s.z) + (s.y + s.w)), cuda::warp_sum((d.x + d.z) + (d.y + d.w))};
}

// What the mixture's recurrence multiplies by: lane i has candidate i's.
struct ResidualFactors {
  float kept, e;

  __device__ ResidualFactors(const ResidualCall& a, const ResidualShared& shared) {
    const int lane = static_cast<int>(threadIdx.x) % 32, mine = lane < a.count ? lane : 0;
    float squares[kUnitBlocks], products[kUnitBlocks];
#pragma unroll
    for (int b = 0; b < kUnitBlocks; ++b) {
      squares[b] = shared.scores[b][mine].x;
      products[b] = shared.scores[b][mine].y;
    }
    const float r = 1.f / math::sqrt(fold_blocks(squares) / static_cast<float>(a.size) + a.eps);
    const float score = fold_blocks(products) * r;
    float most = 0, before = 0;
    bool above = false;
    for (int i = 0; i < a.count; ++i) {
      const float other = __shfl_sync(cuda::kAllLanes, score, i);
      const bool rises = i == 0 || other > most;
      if (lane == i) {
        before = most;
        above = rises;
      }
      if (rises) most = other;
    }
    const float share = math::exp(above ? before - score : score - before);
    kept = above && lane > 0 ? share : 1.f;
    e = above ? 1.f : share;
  }
};

template <int kQuads>
__global__ void __launch_bounds__(32 * kUnitBlocks)
    residual_cluster(const StepView* step, const __grid_constant__ ResidualCall a) {
  namespace ptx = cuda::ptx;
  WEIR_DYNAMIC_SHARED(ResidualShared, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(ptx::cluster_rank());
  const int64_t row = blockIdx.x / kUnitBlocks;
  const auto element = [&](int q) { return 4 * (256 * q + 32 * rank + lane); };
  const auto load = [&](const float* from, int q) {
    return element(q) < a.size ? *reinterpret_cast<const float4*>(from + element(q)) : float4{0.f, 0.f, 0.f, 0.f};
  };
  const bool norms = a.normed != nullptr;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared->scores_full, 1);
    ptx::mbarrier_init(&shared->squares_full, 1);
    ptx::mbarrier_fence_init();
    ptx::mbarrier_arrive_expect(&shared->scores_full, a.count * kUnitBlocks * 16);
    ptx::mbarrier_arrive_expect(&shared->squares_full, kUnitBlocks * 16);
  }
  float4 weight[kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) weight[q] = load(a.weight, q);
  const bool weighs = norms && a.norm_kind == NormKind::kRms;
  const float4 norm_weight = weighs ? load(a.norm_weight, warp) : float4{0.f, 0.f, 0.f, 0.f};
  const int rows = step->rows;  // staged before the first launch of the step
  ptx::cluster_sync();
  ptx::wait_for_previous();
  ptx::let_next_start();
  if (row >= rows) return;

  float4* candidates = shared->candidates();
  for (int i = warp; i < a.count; i += kUnitBlocks) {
    float4 v[kQuads];
    if (i + 1 < a.count || a.g == nullptr) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) v[q] = load(a.candidates[i] + row * a.stride, q);
    } else {
      float4 u[kQuads];
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        v[q] = load(a.g + row * a.g_stride, q);
        u[q] = load(a.u + row * a.u_stride, q);
      }
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        v[q] = cuda::each([](float g, float h) { return g + h; }, v[q], u[q]);
        if (element(q) < a.size) *reinterpret_cast<float4*>(a.sum + row * a.stride + element(q)) = v[q];
      }
    }
#pragma unroll
    for (int q = 0; q < kQuads; ++q) candidates[(i * kQuads + q) * 32 + lane] = v[q];
    const float2 sums = squares_and_products(v, weight);
    if (lane < kUnitBlocks) {
      send(&shared->scores[rank][i], float4{sums.x, sums.y, 0.f, 0.f}, &shared->scores_full, lane);
    }
  }
  __syncthreads();
  ptx::mbarrier_wait_cluster(&shared->scores_full, 0);

  const ResidualFactors factors(a, *shared);
  float z = 0;
  float4 y{0.f, 0.f, 0.f, 0.f};
  for (int i = 0; i < a.count; ++i) {
    const float e = __shfl_sync(cuda::kAllLanes, factors.e, i), kept = __shfl_sync(cuda::kAllLanes, factors.kept, i);
    z = fmaf(z, kept, e);
    if (warp >= kQuads) continue;
    y = cuda::each([&](float x, float t) { return fmaf(e, x, t * kept); }, candidates[(i * kQuads + warp) * 32 + lane],
                   y);
  }
  const float share = 1.f / z;
  y = cuda::each([&](float t) { return t * share; }, y);
  const bool there = warp < kQuads && element(warp) < a.size;
  if (there) *reinterpret_cast<float4*>(a.y + row * a.y_stride + element(warp)) = y;
  if (!norms) return;

  shared->y[warp][lane] = there ? y : float4{0.f, 0.f, 0.f, 0.f};
  __syncthreads();
  float4 s{0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    s = cuda::each([](float x, float t) { return fmaf(x, x, t); }, shared->y[q][lane], s);
  }
  const float of_block = cuda::warp_sum((s.x + s.z) + (s.y + s.w));
  if (lane == 0) send(&shared->squares[rank], float4{of_block, 0.f, 0.f, 0.f}, &shared->squares_full, warp);
  ptx::mbarrier_wait_cluster(&shared->squares_full, 0);
  float squares[kUnitBlocks];
#pragma unroll
  for (int b = 0; b < kUnitBlocks; ++b) squares[b] = shared->squares[b].x;
  const float ss = fold_blocks(squares);
  const float mean = a.norm_kind == NormKind::kL2 ? ss : ss / static_cast<float>(a.size);
  const float r = 1.f / math::sqrt(mean + a.norm_eps);
  if (!there) return;
  y = cuda::each([&](float v) { return v * r; }, y);
  if (a.norm_kind == NormKind::kL2) y = cuda::each([&](float v) { return v * a.norm_scale; }, y);
  if (weighs) y = cuda::each([](float v, float w) { return v * w; }, y, norm_weight);
  cuda::store_quad<true>(a.normed, a.normed_type, row * a.normed_stride + element(warp), y, 4);
}

}  // namespace weir
