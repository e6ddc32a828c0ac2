#include "ops/norm/norm.h"

#include <algorithm>

#include "base/error.h"

namespace weir {

// Unit u is group u % groups of row u / groups.
namespace reference {
void norm_units(const NormArgs& args, int64_t begin, int64_t end);
}
namespace avx2 {
void norm_units(const NormArgs& args, int64_t begin, int64_t end);
}
namespace avx512 {
void norm_units(const NormArgs& args, int64_t begin, int64_t end);
}

namespace {

using UnitsKernel = void (*)(const NormArgs& args, int64_t begin, int64_t end);

UnitsKernel units_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::norm_units;
    case KernelSet::kAvx2:
      return avx2::norm_units;
    case KernelSet::kAvx512:
      return avx512::norm_units;
  }
  return nullptr;
}

template <UnitsKernel kUnits>
void norm_row(const NormArgs& args, int64_t row) {
  kUnits(args, row * args.groups, (row + 1) * args.groups);
}

bool has_weight(NormKind kind) { return kind != NormKind::kRmsPlain && kind != NormKind::kL2; }

// About 4 us of work, against 1 to 2 us for waking a thread.
constexpr int64_t kElementsPerItem = 32768;

class NormOp final : public BoundOp {
 public:
  NormOp(CpuDevice& device, std::string name, const NormArgs& args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        kernel_(units_kernel(device.kernels())),
        units_per_item_(std::max<int64_t>(kElementsPerItem / args.size, 1)) {}

  void run(const StepView& step) override {
    const int64_t units = row_count(step, args_.rows) * args_.groups;
    if (units == 0) return;
    device_.pool().parallel_for((units + units_per_item_ - 1) / units_per_item_, [&](int64_t item, int) {
      kernel_(args_, item * units_per_item_, std::min((item + 1) * units_per_item_, units));
    });
    device_.counters().weight_bytes_read += weight_bytes();
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.weight_bytes = weight_bytes(), .flops = 4.0 * rows * static_cast<double>(args_.groups * args_.size)};
  }

 private:
  int64_t weight_bytes() const { return has_weight(args_.kind) ? args_.size * 4 : 0; }

  CpuDevice& device_;
  NormArgs args_;
  UnitsKernel kernel_;
  int64_t units_per_item_;
};

}  // namespace

NormKernel norm_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return norm_row<reference::norm_units>;
    case KernelSet::kAvx2:
      return norm_row<avx2::norm_units>;
    case KernelSet::kAvx512:
      return norm_row<avx512::norm_units>;
  }
  return nullptr;
}

std::unique_ptr<BoundOp> bind_norm(Device& device, std::string name, const NormArgs& args) {
  if (args.groups < 1 || args.size < 1) {
    fail(name, ": norm of ", args.groups, " groups of ", args.size, " elements; both must be positive");
  }
  const int64_t row = args.groups * args.size;
  if (args.x == nullptr || args.y == nullptr) fail(name, ": norm without input or output");
  check_output(device, name, args.y_type, args.y, args.x);
  if (args.x_stride < row || args.y_stride < row) {
    fail(name, ": norm of rows of ", row, " elements, but strides are ", args.x_stride, " and ", args.y_stride);
  }
  if (has_weight(args.kind) && args.weight == nullptr) fail(name, ": RMS norm without weight");
  if (norm_has_gate(args.kind) && (args.gate == nullptr || args.gate_stride < row)) {
    fail(name, ": gated norm without gate, or gate stride ", args.gate_stride, " below ", row);
  }
  if (device.is_cuda()) return bind_norm_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<NormOp>(device.cpu(), std::move(name), args);
}

}  // namespace weir
