#include <algorithm>
#include <cassert>
#include <utility>

#include "base/error.h"
#include "ops/attention/attention.h"

namespace weir {

namespace reference {
void kv_write_row(StateDtype dtype, const float* x, int64_t size, std::byte* to);
}
namespace avx2 {
void kv_write_row(StateDtype dtype, const float* x, int64_t size, std::byte* to);
}
namespace avx512 {
void kv_write_row(StateDtype dtype, const float* x, int64_t size, std::byte* to);
}

namespace {

using KvWriteKernel = void (*)(StateDtype dtype, const float* x, int64_t size, std::byte* to);

KvWriteKernel kernel_of(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::kv_write_row;
    case KernelSet::kAvx2:
      return avx2::kv_write_row;
    case KernelSet::kAvx512:
      return avx512::kv_write_row;
  }
  return reference::kv_write_row;
}

class KvWrite final : public BoundOp {
 public:
  KvWrite(CpuDevice& device, std::string name, const KvWriteArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), kernel_(kernel_of(device.kernels())) {}

  void run(const StepView& step) override {
    const int64_t element_bytes = state_dtype_bytes(args_.dtype);
    device_.counters().state_bytes_written += step.rows * args_.size * element_bytes;
    const auto group = static_cast<size_t>(args_.field.group);
    // A row is a few kilobytes: too little for a loop's round trip by itself.
    const int64_t chunks = (step.rows + kRowsPerItem - 1) / kRowsPerItem;
    device_.pool().parallel_for(chunks, [&](int64_t chunk, int) {
      const int64_t end = std::min<int64_t>((chunk + 1) * kRowsPerItem, step.rows);
      for (int64_t row = chunk * kRowsPerItem; row < end; ++row) {
        const auto r = static_cast<size_t>(row);
        const int64_t position = step.positions[r];
        const SpanView& span = step.spans[static_cast<size_t>(step.row_spans[r])];
        const PageId page = span.pages[group][static_cast<size_t>(position / kPagePositions)];
        std::byte* to = step.page_pools[group].block(page) + args_.field.offset +
                        position % kPagePositions * args_.field.row_bytes + args_.to * element_bytes;
        kernel_(args_.dtype, args_.x + row * args_.x_stride, args_.size, to);
      }
    });
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.state_bytes = rows * args_.size * state_dtype_bytes(args_.dtype)};
  }

 private:
  static constexpr int64_t kRowsPerItem = 16;

  CpuDevice& device_;
  KvWriteArgs args_;
  KvWriteKernel kernel_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_kv_write(Device& device, std::string name, const KvWriteArgs& args) {
  if (args.field.group < 0 || args.field.group >= kMaxPageGroups) fail(name, ": no page group ", args.field.group);
  if (args.to < 0 || args.size <= 0 || (args.to + args.size) * state_dtype_bytes(args.dtype) > args.field.row_bytes) {
    fail(name, ": elements ", args.to, " to ", args.to + args.size, " do not fit a page row of ", args.field.row_bytes,
         " bytes");
  }
  assert(args.x);
  if (device.is_cuda()) return bind_kv_write_cuda(device.cuda(), std::move(name), args);
  check_cpu_state(name, args.dtype);
  return std::make_unique<KvWrite>(device.cpu(), std::move(name), args);
}

}  // namespace weir
