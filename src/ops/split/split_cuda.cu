#include <utility>

#include "base/error.h"
#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/cuda_op.h"
#include "ops/quads_cuda.cuh"
#include "ops/split/split.h"

namespace weir {
namespace {

using namespace cuda;

constexpr int kMostParts = 8;

// Sizes, strides and x in items: quads where everything is whole quads, else single elements.
struct SplitItems {
  const void* x;
  uint32_t x_stride;
  uint32_t groups;
  uint32_t group_size;
  int parts;
  struct Part {
    void* y;
    uint32_t size;
    uint32_t y_stride;
  } part[kMostParts];
};

template <class Item>
__global__ void __launch_bounds__(kRowThreads) split_kernel(const StepView* step, const SplitItems a) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const uint32_t row_size = a.groups * a.group_size;
  for (uint32_t row = blockIdx.y; row < static_cast<uint32_t>(step->rows); row += gridDim.y) {
    for (uint32_t i = blockIdx.x * kRowThreads + threadIdx.x; i < row_size; i += gridDim.x * kRowThreads) {
      const uint32_t group = i / a.group_size;
      uint32_t at = i - group * a.group_size;
      int p = 0;
#pragma unroll
      for (int next = 0; next < kMostParts - 1; ++next) {
        if (p != next || next + 1 >= a.parts || at < a.part[next].size) continue;
        at -= a.part[next].size;
        p = next + 1;
      }
      const SplitItems::Part& to = a.part[p];
      static_cast<Item*>(to.y)[static_cast<size_t>(row) * to.y_stride + group * to.size + at] =
          static_cast<const Item*>(a.x)[static_cast<size_t>(row) * a.x_stride + i];
    }
  }
}

class SplitCudaOp final : public CudaOp {
 public:
  SplitCudaOp(CudaDevice& device, std::string name, const SplitArgs& args) : CudaOp(device, std::move(name)) {
    quads_ = whole_quads({args.x}, {args.x_stride});
    for (const SplitPart& part : args.parts) quads_ = quads_ && whole_quads({part.y}, {part.size, part.y_stride});
    const auto items = [&](int64_t elements) { return static_cast<uint32_t>(quads_ ? elements / 4 : elements); };
    items_ = {.x = args.x,
              .x_stride = items(args.x_stride),
              .groups = static_cast<uint32_t>(args.groups),
              .group_size = 0,
              .parts = static_cast<int>(args.parts.size()),
              .part = {}};
    for (size_t p = 0; p < args.parts.size(); ++p) {
      items_.part[p] = {args.parts[p].y, items(args.parts[p].size), items(args.parts[p].y_stride)};
      items_.group_size += items_.part[p].size;
    }
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    launch(device(),
           {.grid = row_grid(device(), bounds.rows, int64_t{items_.groups} * items_.group_size),
            .block = kRowThreads,
            .overlap = true},
           quads_ ? split_kernel<float4> : split_kernel<float>, device().step(), items_);
  }

  Cost cost(int32_t, int64_t) const override { return {}; }

 private:
  SplitItems items_;
  bool quads_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_split_cuda(CudaDevice& device, std::string name, SplitArgs args) {
  if (args.parts.size() > size_t{kMostParts}) {
    fail(name, ": split: expected at most ", kMostParts, " parts on a GPU, found ", args.parts.size());
  }
  return std::make_unique<SplitCudaOp>(device, std::move(name), args);
}

}  // namespace weir
