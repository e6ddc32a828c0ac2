#include "ops/embedding/embedding.h"

#include <cstring>

#include "base/error.h"
#include "ops/row_tiles.h"

namespace weir {

// y[i] = value i of `data` in the format, widened, times scale if that is not 1.
namespace reference {
void widen(WeightFormat format, const std::byte* data, float scale, float* y, int64_t n);
}
namespace avx2 {
void widen(WeightFormat format, const std::byte* data, float scale, float* y, int64_t n);
}
namespace avx512 {
void widen(WeightFormat format, const std::byte* data, float scale, float* y, int64_t n);
}

namespace {

using WidenKernel = void (*)(WeightFormat format, const std::byte* data, float scale, float* y, int64_t n);

WidenKernel widen_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::widen;
    case KernelSet::kAvx2:
      return avx2::widen;
    case KernelSet::kAvx512:
      return avx512::widen;
  }
  return nullptr;
}

// About 4 us of work, against 1 to 2 us for waking a thread.
constexpr int64_t kElementsPerItem = 32768;

int64_t element_bytes(WeightFormat format) { return format == WeightFormat::kF32 ? 4 : 2; }

class EmbeddingOp final : public BoundOp {
 public:
  EmbeddingOp(CpuDevice& device, std::string name, const EmbeddingArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), kernel_(widen_kernel(device.kernels())) {}

  void run(const StepView& step) override {
    const WeightView& table = args_.table;
    const RowTiles tiles(step.rows, table.in, kElementsPerItem);
    device_.pool().parallel_for(tiles.items(), [&](int64_t item, int) {
      tiles.each(item, [&](int64_t row, int64_t begin, int64_t end) {
        const int64_t token = step.tokens[static_cast<size_t>(row)];
        kernel_(table.format, table.data + token * table.row_bytes + begin * element_bytes(table.format), args_.scale,
                args_.y + row * args_.y_stride + begin, end - begin);
      });
    });
    device_.counters().weight_bytes_read += step.rows * row_bytes();
  }

  Cost cost(int32_t rows, int64_t) const override { return {.weight_bytes = rows * row_bytes()}; }

 private:
  int64_t row_bytes() const { return args_.table.in * element_bytes(args_.table.format); }

  CpuDevice& device_;
  EmbeddingArgs args_;
  WidenKernel kernel_;
};

class GatherOp final : public BoundOp {
 public:
  GatherOp(CpuDevice& device, std::string name, const GatherArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args) {}

  void run(const StepView& step) override {
    const GatherArgs& a = args_;
    const RowTiles tiles(static_cast<int64_t>(step.logit_rows.size()), a.size, kElementsPerItem);
    device_.pool().parallel_for(tiles.items(), [&](int64_t item, int) {
      tiles.each(item, [&](int64_t i, int64_t begin, int64_t end) {
        const int64_t row = step.logit_rows[static_cast<size_t>(i)];
        std::memcpy(a.y + i * a.y_stride + begin, a.x + row * a.x_stride + begin,
                    static_cast<size_t>(end - begin) * sizeof(float));
      });
    });
  }

  Cost cost(int32_t, int64_t) const override { return {}; }

 private:
  CpuDevice& device_;
  GatherArgs args_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_embedding(CpuDevice& device, std::string name, const EmbeddingArgs& args) {
  const WeightView& table = args.table;
  if (table.format == WeightFormat::kMxfp4) fail(name, ": an embedding table must be F32, BF16 or F16, not MXFP4");
  if (table.empty() || table.out < 1 || table.in < 1) {
    fail(name, ": embedding table of shape [", table.out, ", ", table.in, "]");
  }
  if (table.row_bytes < table.in * element_bytes(table.format)) {
    fail(name, ": embedding rows of ", table.in, " ", weight_format_name(table.format), " values in ", table.row_bytes,
         " bytes");
  }
  if (args.y == nullptr || args.y_stride < table.in) {
    fail(name, ": embedding of ", table.in, " values into rows with stride ", args.y_stride);
  }
  return std::make_unique<EmbeddingOp>(device, std::move(name), args);
}

std::unique_ptr<BoundOp> bind_gather(CpuDevice& device, std::string name, const GatherArgs& args) {
  if (args.x == nullptr || args.y == nullptr || args.x == args.y) {
    fail(name, ": gather needs an input and another buffer as output");
  }
  if (args.size < 1 || args.x_stride < args.size || args.y_stride < args.size) {
    fail(name, ": gather of rows of ", args.size, " elements with strides ", args.x_stride, " and ", args.y_stride);
  }
  return std::make_unique<GatherOp>(device, std::move(name), args);
}

}  // namespace weir
