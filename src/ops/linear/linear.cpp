#include "ops/linear/linear.h"

#include <algorithm>

#include "base/error.h"
#include "ops/linear/linear_blocks.h"

namespace weir {

#define WEIR_LINEAR_INT                                                                                           \
  void linear_int(const WeightView& weight, int64_t out_begin, int64_t out_end, const CodedRows& x, int64_t rows, \
                  float* y, int64_t y_stride, std::byte* scratch);
namespace avx512vnni {
WEIR_LINEAR_INT
}
namespace reference {
WEIR_LINEAR_INT
void linear(const WeightView&, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t, std::byte*);
}  // namespace reference
namespace avx2 {
WEIR_LINEAR_INT
void linear(const WeightView&, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t, std::byte*);
}  // namespace avx2
namespace avx512 {
void linear(const WeightView&, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t, std::byte*);
}

#undef WEIR_LINEAR_INT

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

CodedLinearKernel coded_linear_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::linear_int;
    case KernelSet::kAvx2:
      return avx2::linear_int;
    case KernelSet::kAvx512:  // sums are exact integers: the same bits
      return __builtin_cpu_supports("avx512vnni") ? avx512vnni::linear_int : avx2::linear_int;
  }
  return reference::linear_int;
}

int64_t linear_scratch_bytes() { return linear_blocks::kScratchBytes; }

int64_t linear_panel(int64_t out, int threads, RowCoding coding) {
  // Four items per thread keep the last ones from waiting long. Within an item memory is read ahead; at its start not,
  // which long items make up for.
  const int64_t tile = in_integers(coding) ? linear_blocks::kCodedPanelOuts : linear_blocks::kPanelOuts;
  const int64_t even = out / (int64_t{4} * threads) / tile * tile;
  return std::clamp(even, tile, (in_integers(coding) ? 8 : 2) * linear_blocks::kOuts);
}

namespace {

// Elements that one thread has coded (about 4 us) before others would have helped: waking a thread takes 1 to 2 us.
constexpr int64_t kCodedByOneThread = 16384;

class Linear final : public BoundOp {
 public:
  Linear(CpuDevice& device, std::string name, const LinearArgs& args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        coding_(row_coding(args.weight.format, args.activations)),
        kernel_(linear_kernel(device.kernels())),
        coded_kernel_(coded_linear_kernel(device.kernels())),
        encode_(encode_row_kernel(device.kernels())),
        coded_row_bytes_(coded_row_layout(coding_, args.weight.in).bytes) {
    device.reserve_scratch(linear_scratch_bytes());
    if (coding_ != RowCoding::kNone) device.reserve_shared(args.max_rows * coded_row_bytes_);
  }

  void run(const StepView& step) override {
    const int64_t rows = row_count(step, args_.rows);
    if (rows == 0) return;
    const WeightView& weight = args_.weight;
    if (coding_ != RowCoding::kNone) encode(rows);
    const int64_t panel = linear_panel(weight.out, device_.threads(), coding_);
    device_.pool().parallel_for((weight.out + panel - 1) / panel, [&](int64_t index, int thread) {
      const int64_t begin = index * panel;
      const int64_t end = std::min(begin + panel, weight.out);
      std::byte* scratch = device_.scratch(thread);
      if (in_integers(coding_)) {
        coded_kernel_(weight, begin, end, {device_.shared(), coded_row_bytes_}, rows, y(0), args_.y_stride, scratch);
      } else if (coding_ == RowCoding::kRounded) {
        kernel_(weight, begin, end, reinterpret_cast<const float*>(device_.shared()), coded_row_bytes_ / 4, rows, y(0),
                args_.y_stride, scratch);
      } else {
        kernel_(weight, begin, end, x(0), args_.x_stride, rows, y(0), args_.y_stride, scratch);
      }
      if (args_.bias != nullptr) add_bias(begin, end, rows);
    });
    device_.counters().weight_bytes_read += weight.bytes();
  }

  Cost cost(int32_t rows, int64_t) const override { return linear_cost(args_.weight, args_.rows, rows); }

 private:
  const float* x(int64_t row) const { return static_cast<const float*>(args_.x) + row * args_.x_stride; }
  float* y(int64_t row) const { return static_cast<float*>(args_.y) + row * args_.y_stride; }

  // x as coded rows in the device's shared memory.
  void encode(int64_t rows) {
    const auto row = [&](int64_t r, int) {
      encode_(coding_, x(r), args_.weight.in, device_.shared() + r * coded_row_bytes_);
    };
    if (rows * args_.weight.in > kCodedByOneThread) return device_.pool().parallel_for(rows, row);
    for (int64_t r = 0; r < rows; ++r) row(r, 0);
  }

  void add_bias(int64_t begin, int64_t end, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      float* to = y(r);
      for (int64_t o = begin; o < end; ++o) to[o] += args_.bias[o];
    }
  }

  CpuDevice& device_;
  LinearArgs args_;
  RowCoding coding_;
  LinearKernel kernel_;
  CodedLinearKernel coded_kernel_;
  EncodeRowKernel encode_;
  int64_t coded_row_bytes_;
};

class Linears final : public BoundOp {
 public:
  Linears(CpuDevice& device, std::string name, const std::vector<LinearArgs>& parts) : BoundOp(std::move(name)) {
    for (const LinearArgs& part : parts) parts_.push_back(std::make_unique<Linear>(device, this->name(), part));
  }

  void run(const StepView& step) override {
    for (const auto& part : parts_) part->run(step);
  }
  Cost cost(int32_t rows, int64_t position) const override {
    Cost cost;
    for (const auto& part : parts_) cost += part->cost(rows, position);
    return cost;
  }

 private:
  std::vector<std::unique_ptr<Linear>> parts_;
};

void check_rows(const Device& device, const std::string& name, const LinearArgs& args) {
  if (args.x_type == RowType::kF32 && args.y_type == RowType::kF32) return;
  if (!device.is_cuda() || args.activations != Activations::kAuto) {
    fail(name, ": BF16 rows are multiplied on a GPU with --activations auto, expected FP32 rows");
  }
  if (args.x_type == RowType::kBf16 && (reinterpret_cast<uintptr_t>(args.x) % 16 != 0 || args.x_stride % 8 != 0)) {
    fail(name, ": expected BF16 rows at multiples of 16 bytes, found rows of ", args.x_stride, " elements");
  }
}

void check(Device& device, const std::string& name, const LinearArgs& args) {
  const WeightView& weight = args.weight;
  check_weight(name, weight, kernel_set(device));
  if (args.x == nullptr || args.y == nullptr) fail(name, ": expected buffers for x and y, found none");
  if (args.x_stride < weight.in) fail(name, ": expected x rows of at least ", weight.in, ", found ", args.x_stride);
  if (args.y_stride < weight.out) fail(name, ": expected y rows of at least ", weight.out, ", found ", args.y_stride);
  check_rows(device, name, args);
  if (row_coding(weight.format, args.activations) != RowCoding::kNone && args.max_rows < 1) {
    fail(name, ": expected the most rows of a step, found ", args.max_rows);
  }
}

}  // namespace

Cost linear_cost(const WeightView& weight, RowSet set, int32_t rows) {
  const int32_t used = set == RowSet::kAll ? rows : std::min(rows, 1);
  if (used == 0) return {};
  return {.weight_bytes = weight.bytes(),
          .flops = 2.0 * used * static_cast<double>(weight.out) * static_cast<double>(weight.in)};
}

void check_weight(const std::string& name, const WeightView& weight, KernelSet set) {
  const std::string_view format = weight_format_name(weight.format);
  if (weight.out < 1 || weight.in < 1) {
    fail(name, ": expected a weight of at least [1, 1], found [", weight.out, ", ", weight.in, "]");
  }
  if (weight.empty()) fail(name, ": expected a weight, found none");
  if (weight.format == WeightFormat::kNvfp4 && set != KernelSet::kReference) {
    fail(name, ": NVFP4 is computed with --kernels reference only");
  }
  const WeightBlock block = weight_block(weight.format);
  if (weight.in % block.elements != 0) {
    fail(name, ": ", format, " needs a multiple of ", block.elements, " inputs, found ", weight.in);
  }
  if (weight.format == WeightFormat::kMxfp4) {
    if (weight.scales == nullptr) fail(name, ": MXFP4 needs scales, found none");
    if (weight.scale_row_bytes < weight.in / 32) {
      fail(name, ": expected ", weight.in / 32, " scales per row, found ", weight.scale_row_bytes);
    }
  }
  if (weight.format == WeightFormat::kE4m3) {
    if (weight.scales == nullptr) fail(name, ": E4M3 needs scales, found none");
    if (weight.scale_rows < 1 || weight.scale_cols < 1 ||
        (weight.scale_cols % 16 != 0 && weight.scale_cols < weight.in)) {
      fail(name, ": expected a scale per block of a multiple of 16 columns or per row, found blocks of ",
           weight.scale_rows, " x ", weight.scale_cols);
    }
    const int64_t scales = (weight.in + weight.scale_cols - 1) / weight.scale_cols;
    if (weight.scale_row_bytes < scales * weight_block(weight.scale_format).bytes) {
      fail(name, ": expected ", scales, " scales in a row of them, found ", weight.scale_row_bytes, " bytes");
    }
  }
  const int64_t row_bytes = weight_row_bytes(weight.format, weight.in);
  if (weight.row_bytes < row_bytes) {
    fail(name, ": a row of ", weight.in, " ", format, " elements has ", row_bytes, " bytes, found ", weight.row_bytes);
  }
}

std::unique_ptr<BoundOp> bind_linear(Device& device, std::string name, const LinearArgs& args) {
  check(device, name, args);
  if (device.is_cuda()) return bind_linear_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<Linear>(device.cpu(), std::move(name), args);
}

std::unique_ptr<BoundOp> bind_linears(Device& device, std::string name, const std::vector<LinearArgs>& parts) {
  if (parts.empty()) fail(name, ": expected matrices, found none");
  const LinearArgs& first = parts.front();
  for (const LinearArgs& part : parts) {
    check(device, name, part);
    if (part.x_type != first.x_type || part.rows != first.rows || part.activations != first.activations ||
        part.max_rows != first.max_rows || part.weight.in != first.weight.in) {
      fail(name, ": expected matrices of as many inputs, with the same type and set of rows, activations and max_rows");
    }
  }
  if (device.is_cuda()) return bind_linears_cuda(device.cuda(), std::move(name), parts);
  return std::make_unique<Linears>(device.cpu(), std::move(name), parts);
}

}  // namespace weir
