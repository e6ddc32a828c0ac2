#include "base/error.h"
#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/cuda_op.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/dequant_cuda.cuh"

namespace weir {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;

int64_t blocks_of(int64_t elements) { return (elements + kThreads * kPerThread - 1) / (kThreads * kPerThread); }

// body(element) for the block's part of `size` elements, neighbouring threads having neighbours.
template <class Body>
__device__ void each_element(int64_t size, Body body) {
  const int64_t begin = int64_t{blockIdx.y} * kThreads * kPerThread + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (begin + i * kThreads < size) body(begin + i * kThreads);
  }
}

__global__ void __launch_bounds__(kThreads) embed(const __grid_constant__ EmbeddingArgs args, const StepView* step) {
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const int64_t row = blockIdx.x;
  if (row >= step->rows) return;
  const int64_t token = step->tokens[static_cast<size_t>(row)];
  each_element(args.table.in, [&](int64_t k) {
    const float value = weight_value(args.table, token, k);
    args.y[row * args.y_stride + k] = args.scale == 1 ? value : value * args.scale;
  });
}

__global__ void __launch_bounds__(kThreads) gather(const __grid_constant__ GatherArgs args, const StepView* step) {
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const int64_t i = blockIdx.x;
  if (i >= static_cast<int64_t>(step->logit_rows.size())) return;
  const int64_t row = step->logit_rows[static_cast<size_t>(i)];
  each_element(args.size, [&](int64_t k) { args.y[i * args.y_stride + k] = args.x[row * args.x_stride + k]; });
}

class EmbeddingCuda final : public CudaOp {
 public:
  EmbeddingCuda(CudaDevice& device, std::string name, const EmbeddingArgs& args)
      : CudaOp(device, std::move(name)), args_(args) {
    args_.table = upload(device, args.table);
  }
  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    cuda::launch(device(), {.grid = {bounds.rows, blocks_of(args_.table.in)}, .block = kThreads, .overlap = true},
                 embed, args_, device().step());
  }
  Cost cost(int32_t rows, int64_t) const override {
    const WeightView& table = args_.table;
    return {.weight_bytes = rows * (table.row_bytes + (table.scales != nullptr ? table.in / 32 : 0))};
  }

 private:
  EmbeddingArgs args_;
};

class GatherCuda final : public CudaOp {
 public:
  GatherCuda(CudaDevice& device, std::string name, const GatherArgs& args)
      : CudaOp(device, std::move(name)), args_(args) {}
  void enqueue(const StepBounds& bounds) override {
    if (bounds.logit_rows == 0) return;
    cuda::launch(device(), {.grid = {bounds.logit_rows, blocks_of(args_.size)}, .block = kThreads, .overlap = true},
                 gather, args_, device().step());
  }
  Cost cost(int32_t, int64_t) const override { return {}; }

 private:
  GatherArgs args_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_embedding_cuda(CudaDevice& device, std::string name, const EmbeddingArgs& args) {
  if (args.table.format == WeightFormat::kNvfp4) fail(name, ": an NVFP4 embedding is not supported on a GPU");
  return std::make_unique<EmbeddingCuda>(device, std::move(name), args);
}

std::unique_ptr<BoundOp> bind_gather_cuda(CudaDevice& device, std::string name, const GatherArgs& args) {
  return std::make_unique<GatherCuda>(device, std::move(name), args);
}

}  // namespace weir
