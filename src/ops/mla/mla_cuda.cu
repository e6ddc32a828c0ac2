#include "ops/attention/paged_rows_cuda.cuh"
#include "ops/linear/dequant_cuda.cuh"
#include "ops/mla/mla_cuda.h"

namespace weir {
namespace {

constexpr int kThreads = 128;

__device__ void copy_extra(const HeadProduct& p, const float* x, float* y) {
  if (blockIdx.z != 0) return;
  for (int64_t e = threadIdx.x; e < p.extra; e += kThreads) y[p.outputs + e] = x[p.inner + e];
}

// Transposed: a thread for each output, the inner dimension ascending.
__global__ void transposed_kernel(const StepView* step, HeadProduct p) {
  const int64_t row = blockIdx.x, head = blockIdx.y, o = blockIdx.z * kThreads + threadIdx.x;
  if (row >= step->rows) return;
  const float* x = static_cast<const float*>(p.x) + row * p.x_stride + head * (p.inner + p.extra);
  float* y = static_cast<float*>(p.y) + row * p.y_stride + head * (p.outputs + p.extra);
  copy_extra(p, x, y);
  if (o >= p.outputs) return;
  float sum = 0;
  for (int64_t i = 0; i < p.inner; ++i) {
    sum = fmaf(x[i], weight_value(p.weight, head * p.head_rows + p.first_row + i, o), sum);
  }
  y[o] = sum;
}

// Sixteen threads for each output.
__global__ void rows_kernel(const StepView* step, HeadProduct p) {
  const int64_t row = blockIdx.x, head = blockIdx.y;
  if (row >= step->rows) return;
  const float* x = static_cast<const float*>(p.x) + row * p.x_stride + head * (p.inner + p.extra);
  float* y = static_cast<float*>(p.y) + row * p.y_stride + head * (p.outputs + p.extra);
  copy_extra(p, x, y);
  for (int64_t i = threadIdx.x / 16; i < kThreads; i += kThreads / 16) {
    const int64_t o = blockIdx.z * kThreads + i;
    const int64_t weight_row = head * p.head_rows + p.first_row + (o < p.outputs ? o : 0);
    const float dot = dot_sixteen(
        p.inner, [&](int64_t k) { return x[k]; }, [&](int64_t k) { return weight_value(p.weight, weight_row, k); });
    if (threadIdx.x % 16 == 0 && o < p.outputs) y[o] = dot;
  }
}

class PlainHeadProduct final : public CudaOp {
 public:
  PlainHeadProduct(CudaDevice& device, std::string name, const HeadProduct& product)
      : CudaOp(device, std::move(name)), product_(product) {
    product_.weight = upload(device, product.weight);
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const int64_t parts = (product_.outputs + kThreads - 1) / kThreads;
    cuda::launch(device(), {.grid = {bounds.rows, product_.heads, parts}, .block = kThreads},
                 product_.transposed ? transposed_kernel : rows_kernel, device().step(), product_);
  }

  Cost cost(int32_t rows, int64_t) const override { return product_.cost(rows); }

 private:
  HeadProduct product_;
};

std::unique_ptr<BoundOp> bind(CudaDevice& device, std::string name, const HeadProduct& product,
                              Activations activations) {
  if (activations == Activations::kAuto) return make_head_product_bf16(device, std::move(name), product);
  return std::make_unique<PlainHeadProduct>(device, std::move(name), product);
}

}  // namespace

std::unique_ptr<BoundOp> bind_mla_absorb_cuda(CudaDevice& device, std::string name, const MlaProjectArgs& args) {
  const bool split = args.kv_b.empty();
  return bind(device, std::move(name),
              {.weight = split ? args.k_b : args.kv_b,
               .head_rows = split ? args.latent : args.nope + args.value,
               .first_row = 0,
               .transposed = !split,
               .heads = args.heads,
               .outputs = args.latent,
               .inner = args.nope,
               .extra = args.extra,
               .x = args.x,
               .x_stride = args.x_stride,
               .y = args.y,
               .y_stride = args.y_stride,
               .x_type = args.x_type,
               .y_type = args.y_type},
              args.activations);
}

std::unique_ptr<BoundOp> bind_mla_expand_cuda(CudaDevice& device, std::string name, const MlaProjectArgs& args) {
  const bool split = args.kv_b.empty();
  return bind(device, std::move(name),
              {.weight = split ? args.v_b : args.kv_b,
               .head_rows = split ? args.value : args.nope + args.value,
               .first_row = split ? 0 : args.nope,
               .transposed = false,
               .heads = args.heads,
               .outputs = args.value,
               .inner = args.latent,
               .x = args.x,
               .x_stride = args.x_stride,
               .y = args.y,
               .y_stride = args.y_stride,
               .x_type = args.x_type,
               .y_type = args.y_type},
              args.activations);
}

}  // namespace weir
