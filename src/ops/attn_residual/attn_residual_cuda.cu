#include <algorithm>
#include <utility>

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/attn_residual/residual_cluster_cuda.cuh"
#include "ops/cuda_op.h"
#include "ops/norm/unit_cuda.cuh"

namespace weir {
namespace {

using namespace cuda;

constexpr int kBlocksPerSm = 8;
constexpr int32_t kMostClusterRows = 96;  // more keep all multiprocessors busy with a block each

// Both sums over a unit at the price of one barrier; the order of Unit::sum.
template <class U>
__device__ __forceinline__ float2 squares_and_product(const U& v, const U& weight, float2* partial) {
  float4 s{0.f, 0.f, 0.f, 0.f}, d{0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int q = 0; q < U::kQuads; ++q) {
    s = each([](float x, float t) { return fmaf(x, x, t); }, v.quad[q], s);
    d = each([](float x, float w, float t) { return fmaf(x, w, t); }, v.quad[q], weight.quad[q], d);
  }
  float2 sums{warp_sum((s.x + s.z) + (s.y + s.w)), warp_sum((d.x + d.z) + (d.y + d.w))};
  if constexpr (U::kWarps == 1) return sums;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sums;
  __syncthreads();
  sums = partial[threadIdx.x % U::kWarps];
  return {warp_sum<U::kWarps>(sums.x), warp_sum<U::kWarps>(sums.y)};
}

template <class Shape>
__device__ __forceinline__ void store_norm(const ResidualCall& a, int64_t row, const Unit<Shape>& y, float ss) {
  using U = Unit<Shape>;
  const float mean = a.norm_kind == NormKind::kL2 ? ss : ss / static_cast<float>(a.size);
  const float r = 1.f / math::sqrt(mean + a.norm_eps);
  U::each_quad(a.size, [&](int q, int k) {
    float4 out = each([&](float v) { return v * r; }, y.quad[q]);
    if (a.norm_kind == NormKind::kL2) {
      out = each([&](float v) { return v * a.norm_scale; }, out);
    } else if (a.norm_kind != NormKind::kRmsPlain) {
      const float4 weight = load_quad<Shape::kWholeQuads>(a.norm_weight + k, a.size - k);
      out = each([](float v, float w) { return v * w; }, out, weight);
    }
    store_quad<Shape::kWholeQuads>(a.normed, a.normed_type, row * a.normed_stride + k, out, a.size - k);
  });
}

// Candidate `i` of a row, formed if it is a sum.
template <class Shape>
__device__ __forceinline__ void load_candidate(const ResidualCall& a, int i, int64_t row, Unit<Shape>& v) {
  using U = Unit<Shape>;
  if (i + 1 < a.count || a.g == nullptr) return v.load(a.candidates[i] + row * a.stride, a.size);
  U::each_quad(a.size, [&](int q, int k) {
    const int live = a.size - k;
    v.quad[q] =
        each([](float g, float u) { return g + u; }, load_quad<Shape::kWholeQuads>(a.g + row * a.g_stride + k, live),
             load_quad<Shape::kWholeQuads>(a.u + row * a.u_stride + k, live));
    store_quad<Shape::kWholeQuads>(a.sum + row * a.stride + k, v.quad[q], live);
  });
}

// One pass over the candidates, the next one's elements on their way while one is summed.
template <class Shape>
__global__ void __launch_bounds__(Shape::kBlockThreads, Shape::kUnitThreads == 256 ? 2 : 1)
    residual_kernel(const StepView* step, const __grid_constant__ ResidualCall a) {
  using U = Unit<Shape>;
  __shared__ float2 partial[2][U::kWarps];
  ptx::wait_for_previous();
  ptx::let_next_start();
  int turn = 0;
  int64_t row = static_cast<int64_t>(blockIdx.x) * Shape::kUnitsPerBlock + threadIdx.x / U::kThreads;
  for (; row < step->rows; row += static_cast<int64_t>(gridDim.x) * Shape::kUnitsPerBlock) {
    U y, next;
#pragma unroll
    for (int q = 0; q < U::kQuads; ++q) y.quad[q] = next.quad[q] = float4{0.f, 0.f, 0.f, 0.f};
    float most = 0, z = 0;
    load_candidate<Shape>(a, 0, row, next);
    for (int i = 0; i < a.count; ++i, turn ^= 1) {
      const U v = next;
      if (i + 1 < a.count) load_candidate<Shape>(a, i + 1, row, next);
      U weight;
      weight.load(a.weight, a.size);
      const float2 sums = squares_and_product(v, weight, partial[turn]);
      const float r = 1.f / math::sqrt(sums.x / static_cast<float>(a.size) + a.eps);
      const float score = sums.y * r;
      const bool above = i == 0 || score > most;
      const float kept = i > 0 && above ? math::exp(most - score) : 1.f;
      const float e = above ? 1.f : math::exp(score - most);
      if (above) most = score;
      z = fmaf(z, kept, e);
#pragma unroll
      for (int q = 0; q < U::kQuads; ++q) {
        y.quad[q] = each([&](float x, float t) { return fmaf(e, x, t * kept); }, v.quad[q], y.quad[q]);
      }
    }
    const float share = 1.f / z;
    U::each_quad(a.size, [&](int q, int k) {
      y.quad[q] = each([&](float t) { return t * share; }, y.quad[q]);
      store_quad<Shape::kWholeQuads>(a.y + row * a.y_stride + k, y.quad[q], a.size - k);
    });
    if (a.normed == nullptr) continue;
    if constexpr (!Shape::kWholeQuads) {  // beyond the end: a NaN may have come in by `share`
      U::each_quad(a.size, [&](int q, int k) {
        if (a.size - k < 2) y.quad[q].y = 0.f;
        if (a.size - k < 3) y.quad[q].z = 0.f;
        if (a.size - k < 4) y.quad[q].w = 0.f;
      });
    }
    store_norm<Shape>(a, row, y, y.sum_of_squares(reinterpret_cast<float*>(partial[turn])));
    turn ^= 1;
  }
}

class ResidualCudaOp final : public CudaOp {
 public:
  ResidualCudaOp(CudaDevice& device, std::string name, const AttnResidualArgs& args, const ElementwiseArgs* add,
                 const NormArgs* norm)
      : CudaOp(device, std::move(name)) {
    std::ranges::copy(args.candidates, call_.candidates);
    call_.count = static_cast<int>(args.candidates.size());
    call_.size = static_cast<int>(args.size);
    call_.stride = args.stride;
    call_.eps = args.eps;
    call_.weight = device.upload(args.weight, args.size);
    call_.y = args.y;
    call_.y_stride = args.y_stride;
    aligned_ = whole_quads({args.y}, {args.size, args.stride, args.y_stride});
    for (const float* candidate : args.candidates) aligned_ = aligned_ && whole_quads({candidate}, {});
    if (add != nullptr) adds(*add);
    if (norm != nullptr) norms(*norm);
    clusters_ = aligned_ && call_.size >= kLeastClusterSize && call_.size <= kMostClusterSize &&
                call_.count <= kMostClusterCandidates;
    for (const auto kernel : {residual_cluster<4>, residual_cluster<8>}) {
      if (clusters_) allow_shared(kernel, residual_shared_bytes(kMostClusterCandidates, 8));
    }
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    if (clusters_ && bounds.rows <= kMostClusterRows) return enqueue_clusters(bounds.rows);
    with_unit_shape(call_.size, aligned_, [&]<class Shape>(Shape) {
      const int64_t blocks = (bounds.rows + Shape::kUnitsPerBlock - 1) / Shape::kUnitsPerBlock;
      launch(device(),
             {.grid = std::min<int64_t>(blocks, int64_t{kBlocksPerSm} * device().sm_count()),
              .block = Shape::kBlockThreads,
              .overlap = true},
             residual_kernel<Shape>, device().step(), call_);
    });
  }

  Cost cost(int32_t rows, int64_t) const override {
    const double operations = 6.0 * call_.count + (call_.g != nullptr ? 1 : 0) + (call_.normed != nullptr ? 4 : 0);
    return {.weight_bytes = call_.size * (call_.norm_weight != nullptr ? 8 : 4),
            .flops = operations * rows * static_cast<double>(call_.size)};
  }

 private:
  void enqueue_clusters(int32_t rows) {
    const int quads = call_.size <= 4096 ? 4 : 8;
    launch(device(),
           {.grid = kUnitBlocks * rows,
            .block = 32 * kUnitBlocks,
            .shared_bytes = residual_shared_bytes(call_.count, quads),
            .cluster = kUnitBlocks,
            .overlap = true},
           quads == 4 ? residual_cluster<4> : residual_cluster<8>, device().step(), call_);
  }
  void adds(const ElementwiseArgs& add) {
    call_.g = add.g;
    call_.g_stride = add.g_stride;
    call_.u = add.u;
    call_.u_stride = add.u_stride;
    call_.sum = static_cast<float*>(add.y);
    aligned_ = aligned_ && whole_quads({add.g, add.u}, {add.g_stride, add.u_stride});
  }
  void norms(const NormArgs& norm) {
    call_.norm_kind = norm.kind;
    call_.norm_eps = norm.eps;
    call_.norm_scale = norm.scale;
    call_.norm_weight = device().upload(norm.weight, norm.size);
    call_.normed = norm.y;
    call_.normed_stride = norm.y_stride;
    call_.normed_type = norm.y_type;
    aligned_ = aligned_ && whole_quads({norm.y}, {norm.y_stride});
  }

  ResidualCall call_{};
  bool aligned_;
  bool clusters_ = false;
};

}  // namespace

std::unique_ptr<BoundOp> bind_attn_residual_cuda(CudaDevice& device, std::string name, AttnResidualArgs args) {
  check_unit(name, args.size);
  return std::make_unique<ResidualCudaOp>(device, std::move(name), args, nullptr, nullptr);
}

std::unique_ptr<BoundOp> bind_residual_norm_cuda(CudaDevice& device, std::string name, ResidualNormArgs args) {
  return std::make_unique<ResidualCudaOp>(device, std::move(name), args.residual, args.add ? &*args.add : nullptr,
                                          &args.norm);
}

}  // namespace weir
