#include "ops/linear/linear.h"

#include <algorithm>

#include "base/error.h"
#include "ops/linear/linear_blocks.h"

namespace weir {

namespace reference {
void linear(const WeightView&, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t, std::byte*);
}
namespace avx2 {
void linear(const WeightView&, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t, std::byte*);
}
namespace avx512 {
void linear(const WeightView&, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t, std::byte*);
}

LinearKernel linear_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::linear;
    case KernelSet::kAvx2:
      return avx2::linear;
    case KernelSet::kAvx512:
      return avx512::linear;
  }
  return reference::linear;
}

int64_t linear_scratch_bytes() { return linear_blocks::kScratchBytes; }

int64_t linear_panel(int64_t out, int threads) {
  // Four items per thread keep the last ones from waiting long. Within an item memory is read ahead; at its start not,
  // which long items make up for.
  const int64_t tile = linear_blocks::kPanelOuts;
  const int64_t even = out / (int64_t{4} * threads) / tile * tile;
  return std::clamp(even, tile, 2 * linear_blocks::kOuts);
}

namespace {

class Linear final : public BoundOp {
 public:
  Linear(CpuDevice& device, std::string name, const LinearArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), kernel_(linear_kernel(device.kernels())) {
    device.reserve_scratch(linear_scratch_bytes());
  }

  void run(const StepView& step) override {
    const int64_t rows = row_count(step, args_.rows);
    if (rows == 0) return;
    const WeightView& weight = args_.weight;
    const int64_t panel = linear_panel(weight.out, device_.threads());
    device_.pool().parallel_for((weight.out + panel - 1) / panel, [&](int64_t index, int thread) {
      const int64_t begin = index * panel;
      const int64_t end = std::min(begin + panel, weight.out);
      kernel_(weight, begin, end, args_.x, args_.x_stride, rows, args_.y, args_.y_stride, device_.scratch(thread));
      if (args_.bias != nullptr) add_bias(begin, end, rows);
    });
    device_.counters().weight_bytes_read += weight.bytes();
  }

  // Of a sequence's rows, the last one wants logits.
  Cost cost(int32_t rows, int64_t) const override {
    const int32_t used = args_.rows == RowSet::kAll ? rows : std::min(rows, 1);
    if (used == 0) return {};
    return {.weight_bytes = args_.weight.bytes(),
            .flops = 2.0 * used * static_cast<double>(args_.weight.out) * static_cast<double>(args_.weight.in)};
  }

 private:
  void add_bias(int64_t begin, int64_t end, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      float* y = args_.y + r * args_.y_stride;
      for (int64_t o = begin; o < end; ++o) y[o] += args_.bias[o];
    }
  }

  CpuDevice& device_;
  LinearArgs args_;
  LinearKernel kernel_;
};

int64_t packed_row_bytes(const WeightView& weight) {
  switch (weight.format) {
    case WeightFormat::kF32:
      return weight.in * 4;
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return weight.in * 2;
    default:
      return weight_row_bytes(weight.format, weight.in);
  }
}

void check(const std::string& name, const LinearArgs& args) {
  const WeightView& weight = args.weight;
  const std::string_view format = weight_format_name(weight.format);
  if (weight.out < 1 || weight.in < 1) {
    fail(name, ": expected a weight of at least [1, 1], found [", weight.out, ", ", weight.in, "]");
  }
  if (weight.empty()) fail(name, ": expected a weight, found none");
  if (weight.format == WeightFormat::kMxfp4) {
    if (weight.in % 32 != 0) fail(name, ": MXFP4 needs a multiple of 32 inputs, found ", weight.in);
    if (weight.scales == nullptr) fail(name, ": MXFP4 needs scales, found none");
    if (weight.scale_row_bytes < weight.in / 32) {
      fail(name, ": expected ", weight.in / 32, " scales per row, found ", weight.scale_row_bytes);
    }
  }
  if (weight.row_bytes < packed_row_bytes(weight)) {
    fail(name, ": a row of ", weight.in, " ", format, " elements has ", packed_row_bytes(weight), " bytes, found ",
         weight.row_bytes);
  }
  if (args.x == nullptr || args.y == nullptr) fail(name, ": expected buffers for x and y, found none");
  if (args.x_stride < weight.in) fail(name, ": expected x rows of at least ", weight.in, ", found ", args.x_stride);
  if (args.y_stride < weight.out) fail(name, ": expected y rows of at least ", weight.out, ", found ", args.y_stride);
}

}  // namespace

std::unique_ptr<BoundOp> bind_linear(CpuDevice& device, std::string name, const LinearArgs& args) {
  check(name, args);
  return std::make_unique<Linear>(device, std::move(name), args);
}

}  // namespace weir
