// A thread computes one channel of some consecutive rows, with the earlier inputs in registers.
#include <vector>

#include "device/cuda/kernel.h"
#include "ops/cuda_op.h"
#include "ops/short_conv/short_conv.h"

namespace weir {
namespace {

constexpr int kThreads = 128;
constexpr int kSpanRows = 8;  // rows of a thread where spans are long; elsewhere one, since each looks its pages up

struct Channel {
  const ShortConvArgs& args;
  const StepView& step;
  const SpanView& span;
  int64_t channel;

  // Null where the page table has no page.
  __device__ float* journal(int64_t position) const {
    const PageField& field = args.journal;
    const PageId page = span.pages[field.group][static_cast<size_t>(position / kPagePositions)];
    if (page == kNoPage) return nullptr;
    return reinterpret_cast<float*>(step.page_pools[static_cast<size_t>(field.group)].block(page) + field.offset +
                                    position % kPagePositions * field.row_bytes) +
           channel;
  }
  __device__ float* window(SlotId slot, int64_t row) const {
    return reinterpret_cast<float*>(step.anchor_pool.block(slot) + args.window.offset) + row * args.channels + channel;
  }
  // Of a position of the sequence: from the batch, the journal, the window of the anchor, or zero.
  __device__ float input(int64_t position) const {
    if (position >= span.first_position) {
      return args.x[(span.first_row + position - span.first_position) * args.x_stride + channel];
    }
    if (position >= span.anchor_position) return *journal(position);
    if (span.anchor == kZeroAnchor) return 0.f;
    return *window(span.anchor, position - (span.anchor_position - (args.taps - 1)));
  }
};

template <int kTaps>
__global__ void __launch_bounds__(kThreads) short_conv(ShortConvArgs args, const StepView* step, int rows_each) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t begin = int64_t{blockIdx.y} * rows_each;
  const int64_t end = begin + rows_each < step->rows ? begin + rows_each : step->rows;
  if (channel >= args.channels) return;
  float weight[kTaps], x[kTaps] = {};  // x[kTaps - 1]: the row's own
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) weight[tap] = args.weight[tap * args.channels + channel];
  int32_t loaded = -1;  // the span whose earlier inputs are in x
  for (int64_t row = begin; row < end; ++row) {
    const int32_t number = step->row_spans[static_cast<size_t>(row)];
    const Channel at{args, *step, step->spans[static_cast<size_t>(number)], channel};
    const int64_t position = at.span.first_position + row - at.span.first_row;
#pragma unroll
    for (int tap = 0; tap < kTaps - 1; ++tap)
      x[tap] = number == loaded ? x[tap + 1] : at.input(position - (kTaps - 1) + tap);
    loaded = number;
    x[kTaps - 1] = args.x[row * args.x_stride + channel];
    float sum = 0.f;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) sum = math::fma(weight[tap], x[tap], sum);
    args.y[row * args.y_stride + channel] = math::silu(sum);
    if (float* journal = at.journal(position); journal != nullptr) *journal = x[kTaps - 1];
    if (position % kPagePositions != 0) continue;
    // What the row sees is the window of the anchor at its position.
    for (size_t i = 0; i < at.span.anchor_writes.size(); ++i) {
      const AnchorWrite& write = at.span.anchor_writes[i];
      if (write.position != position) continue;
#pragma unroll
      for (int tap = 0; tap < kTaps - 1; ++tap) *at.window(write.slot, tap) = x[tap];
    }
  }
}

using Kernel = void (*)(ShortConvArgs, const StepView*, int);

Kernel kernel_of(int64_t taps) {
  constexpr Kernel kKernels[] = {short_conv<2>, short_conv<3>, short_conv<4>, short_conv<5>,
                                 short_conv<6>, short_conv<7>, short_conv<8>};
  return kKernels[taps - 2];
}

class CudaShortConv final : public CudaOp {
 public:
  CudaShortConv(CudaDevice& device, std::string name, const ShortConvArgs& args)
      : CudaOp(device, std::move(name)), args_(args), kernel_(kernel_of(args.taps)) {
    std::vector<float> weight(static_cast<size_t>(args.taps * args.channels));  // [taps, channels]
    for (int64_t c = 0; c < args.channels; ++c) {
      for (int64_t tap = 0; tap < args.taps; ++tap) {
        weight[static_cast<size_t>(tap * args.channels + c)] = args.weight[c * args.taps + tap];
      }
    }
    float* on_device = device.allocate_array<float>(args.taps * args.channels);
    device.to_device(on_device, weight.data(), args.taps * args.channels * static_cast<int64_t>(sizeof(float)));
    args_.weight = on_device;
  }

  void enqueue(const StepBounds& bounds) override {
    const int rows_each = bounds.longest_span > 1 ? kSpanRows : 1;
    const int64_t channels = (args_.channels + kThreads - 1) / kThreads,
                  rows = (bounds.rows + rows_each - 1) / rows_each;
    cuda::launch(device(), {.grid = {channels, rows}, .block = kThreads}, kernel_, args_, device().step(), rows_each);
  }

  Cost cost(int32_t rows, int64_t position) const override { return short_conv_cost(args_, rows, position); }

 private:
  ShortConvArgs args_;
  Kernel kernel_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_short_conv_cuda(CudaDevice& device, std::string name, const ShortConvArgs& args) {
  return std::make_unique<CudaShortConv>(device, std::move(name), args);
}

}  // namespace weir
