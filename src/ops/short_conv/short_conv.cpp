#include "ops/short_conv/short_conv.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "ops/short_conv/short_conv_kernel.h"

namespace weir {
namespace {

constexpr int64_t kMaxTaps = 8;
constexpr int64_t kFloat = sizeof(float);
// A work item is 16 rows x 1,024 channels: its inputs (64 KiB) stay in the second-level cache while four rows read
// them.
constexpr int64_t kItemRows = 16;
constexpr int64_t kItemChannels = 1024;

ShortConvRow row_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::short_conv_row;
    case KernelSet::kAvx2:
      return avx2::short_conv_row;
    case KernelSet::kAvx512:
      return avx512::short_conv_row;
  }
  return reference::short_conv_row;
}

void check(const std::string& name, const ShortConvArgs& args) {
  if (args.channels < 1 || args.taps < 2 || args.taps > kMaxTaps) {
    fail(name, ": short convolution: expected at least 1 channel and 2 to 8 taps, found ", args.channels, " channels, ",
         args.taps, " taps");
  }
  if (args.weight == nullptr || args.x == nullptr || args.y == nullptr || args.x == args.y) {
    fail(name, ": short convolution: weight, x or y is missing, or y is x");
  }
  if (args.x_stride < args.channels || args.y_stride < args.channels) {
    fail(name, ": short convolution: a row stride is shorter than ", args.channels, " channels");
  }
  if (args.journal.group < 0 || args.journal.group >= kMaxPageGroups ||
      args.journal.row_bytes < args.channels * kFloat) {
    fail(name, ": short convolution: expected journal rows of ", args.channels * kFloat, " bytes, found ",
         args.journal.row_bytes);
  }
  if (args.window.bytes < (args.taps - 1) * args.channels * kFloat) {
    fail(name, ": short convolution: expected a window of ", (args.taps - 1) * args.channels * kFloat, " bytes, found ",
         args.window.bytes);
  }
}

class ShortConv final : public BoundOp {
 public:
  ShortConv(CpuDevice& device, std::string name, const ShortConvArgs& args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        row_(row_kernel(device.kernels())),
        weight_(args.taps * args.channels * kFloat),
        zeros_(args.channels * kFloat) {
    // [taps, channels], so that lanes are channels.
    float* weight = weight_.as<float>().data();
    for (int64_t c = 0; c < args.channels; ++c) {
      for (int64_t tap = 0; tap < args.taps; ++tap) {
        weight[tap * args.channels + c] = args.weight[c * args.taps + tap];
      }
    }
  }

  void run(const StepView& step) override {
    const int64_t row_parts = (step.rows + kItemRows - 1) / kItemRows;
    const int64_t channel_parts = (args_.channels + kItemChannels - 1) / kItemChannels;
    device_.pool().parallel_for(row_parts * channel_parts, [&](int64_t item, int) {
      const int64_t begin = item / channel_parts * kItemRows;
      const int64_t end = begin + kItemRows < step.rows ? begin + kItemRows : step.rows;
      const int64_t channel = item % channel_parts * kItemChannels;
      const int64_t count = channel + kItemChannels < args_.channels ? kItemChannels : args_.channels - channel;
      for (int64_t row = begin; row < end; ++row) convolve(step, row, channel, count);
    });
    write_windows(step);
    count_bytes(step);
  }

  Cost cost(int32_t rows, int64_t position) const override { return short_conv_cost(args_, rows, position); }

 private:
  // Input of `position` of a span's sequence: from the batch, the journal, the window of the anchor, or zeros.
  const float* input(const StepView& step, const SpanView& span, int64_t position) const {
    if (position >= span.first_position)
      return args_.x + (span.first_row + position - span.first_position) * args_.x_stride;
    if (position >= span.anchor_position) return journal_row(step, span, position);
    if (span.anchor == kZeroAnchor) return zeros_.as<float>().data();
    const int64_t row = position - (span.anchor_position - (args_.taps - 1));
    return window(step, span.anchor) + row * args_.channels;
  }

  // Null where the page table has no page.
  float* journal_row(const StepView& step, const SpanView& span, int64_t position) const {
    const PageField& field = args_.journal;
    const PageId page = span.pages[field.group][static_cast<size_t>(position / kPagePositions)];
    if (page == kNoPage) return nullptr;
    return reinterpret_cast<float*>(step.page_pools[static_cast<size_t>(field.group)].block(page) + field.offset +
                                    position % kPagePositions * field.row_bytes);
  }

  float* window(const StepView& step, SlotId slot) const {
    return reinterpret_cast<float*>(step.anchor_pool.block(slot) + args_.window.offset);
  }

  void convolve(const StepView& step, int64_t row, int64_t channel, int64_t count) const {
    const SpanView& span = step.spans[static_cast<size_t>(step.row_spans[static_cast<size_t>(row)])];
    const int64_t position = span.first_position + row - span.first_row;
    const float* x[kMaxTaps];
    for (int64_t tap = 0; tap < args_.taps; ++tap) {
      x[tap] = input(step, span, position - (args_.taps - 1) + tap) + channel;
    }
    float* journal = journal_row(step, span, position);
    row_(weight_.as<float>().data() + channel, args_.channels, x, args_.taps, count,
         args_.y + row * args_.y_stride + channel, journal == nullptr ? nullptr : journal + channel);
  }

  // Few rows: a span writes few anchors, mostly one in sixteen steps.
  void write_windows(const StepView& step) const {
    for (const SpanView& span : step.spans) {
      for (const AnchorWrite& write : span.anchor_writes) {
        float* out = window(step, write.slot);
        for (int64_t i = 0; i < args_.taps - 1; ++i) {
          const float* x = input(step, span, write.position - (args_.taps - 1) + i);
          std::memcpy(out + i * args_.channels, x, static_cast<size_t>(args_.channels * kFloat));
        }
      }
    }
  }

  void count_bytes(const StepView& step) const {
    const int64_t row_bytes = args_.channels * kFloat;
    StepCounters& counters = device_.counters();
    counters.weight_bytes_read += args_.taps * row_bytes;
    for (const SpanView& span : step.spans) {
      const int64_t earlier = span.first_position < args_.taps - 1 ? span.first_position : args_.taps - 1;
      counters.state_bytes_read += earlier * row_bytes;
      for (int64_t p = span.first_position; p <= span.last_position(); ++p) {
        if (journal_row(step, span, p) != nullptr) counters.state_bytes_written += row_bytes;
      }
      counters.state_bytes_written += static_cast<int64_t>(span.anchor_writes.size()) * (args_.taps - 1) * row_bytes;
    }
  }

  CpuDevice& device_;
  ShortConvArgs args_;
  ShortConvRow row_;
  Mapping weight_;  // [taps, channels]
  Mapping zeros_;   // [channels]: the inputs before position 0
};

}  // namespace

Cost short_conv_cost(const ShortConvArgs& args, int32_t rows, int64_t position) {
  const int64_t row_bytes = args.channels * kFloat;
  const int64_t first = position - rows + 1;
  const int64_t earlier = first < args.taps - 1 ? first : args.taps - 1;
  Cost cost;
  cost.weight_bytes = args.taps * row_bytes;
  cost.state_bytes = (earlier + rows) * row_bytes;
  if (position / kPagePositions > (first - 1) / kPagePositions && position >= kPagePositions) {
    cost.state_bytes += (args.taps - 1) * row_bytes;
  }
  cost.flops =
      static_cast<double>(rows) * static_cast<double>(args.channels) * (2. * static_cast<double>(args.taps) + 30.);
  return cost;
}

std::unique_ptr<BoundOp> bind_short_conv(Device& device, std::string name, const ShortConvArgs& args) {
  check(name, args);
  if (device.is_cuda()) return bind_short_conv_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<ShortConv>(device.cpu(), std::move(name), args);
}

}  // namespace weir
