#include "device/cuda/ptx.h"
#include "ops/attention/paged_rows_cuda.cuh"
#include "ops/cuda_op.h"

namespace weir {
namespace {

constexpr int kThreads = 128;

__global__ void kv_write_kernel(const StepView* step, KvWriteArgs args) {
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const int64_t row = blockIdx.x;
  if (row >= step->rows) return;
  const auto r = static_cast<size_t>(row);
  const SpanView& span = step->spans[static_cast<size_t>(step->row_spans[r])];
  std::byte* to = const_cast<std::byte*>(paged_rows(*step, span, args.field).row(step->positions[r]));
  const float* x = args.x + row * args.x_stride;
  const int64_t i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= args.size) return;
  switch (args.dtype) {
    case StateDtype::kF32:
      reinterpret_cast<float*>(to)[args.to + i] = x[i];
      return;
    case StateDtype::kF16:
      reinterpret_cast<uint16_t*>(to)[args.to + i] = static_cast<uint16_t>(cuda::pack_f16(x[i], 0.f));
      return;
    case StateDtype::kBf16:
      reinterpret_cast<uint16_t*>(to)[args.to + i] = static_cast<uint16_t>(cuda::pack_bf16(x[i], 0.f));
      return;
  }
}

class CudaKvWrite final : public CudaOp {
 public:
  CudaKvWrite(CudaDevice& device, std::string name, const KvWriteArgs& args)
      : CudaOp(device, std::move(name)), args_(args) {}

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const int64_t parts = (args_.size + kThreads - 1) / kThreads;
    cuda::launch(device(), {.grid = {bounds.rows, parts}, .block = kThreads, .overlap = true}, kv_write_kernel,
                 device().step(), args_);
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.state_bytes = rows * args_.size * state_dtype_bytes(args_.dtype)};
  }

 private:
  KvWriteArgs args_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_kv_write_cuda(CudaDevice& device, std::string name, const KvWriteArgs& args) {
  return std::make_unique<CudaKvWrite>(device, std::move(name), args);
}

}  // namespace weir
