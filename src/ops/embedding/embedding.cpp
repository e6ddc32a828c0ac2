#include "ops/embedding/embedding.h"

#include <cstring>

#include "base/error.h"
#include "formats/quant.h"
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
constexpr int64_t kLargestBlock = 256;

bool in_blocks(WeightFormat format) { return weight_block(format).elements > 1; }

class EmbeddingOp final : public BoundOp {
 public:
  EmbeddingOp(CpuDevice& device, std::string name, const EmbeddingArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), kernel_(widen_kernel(device.kernels())) {}

  void run(const StepView& step) override {
    const WeightView& table = args_.table;
    const RowTiles tiles(step.rows, table.in, kElementsPerItem, kLargestBlock);
    device_.pool().parallel_for(tiles.items(), [&](int64_t item, int) {
      tiles.each(item, [&](int64_t row, int64_t begin, int64_t end) {
        const int64_t token = step.tokens[static_cast<size_t>(row)];
        float* y = args_.y + row * args_.y_stride + begin;
        if (in_blocks(table.format)) return dequantize_part(token, begin, end - begin, y);
        kernel_(table.format, table.data + token * table.row_bytes + weight_row_bytes(table.format, begin), args_.scale,
                y, end - begin);
      });
    });
    device_.counters().weight_bytes_read += step.rows * row_bytes();
  }

  Cost cost(int32_t rows, int64_t) const override { return {.weight_bytes = rows * row_bytes()}; }

 private:
  int64_t row_bytes() const {
    const WeightView& table = args_.table;
    return weight_row_bytes(table.format, table.in) + (table.scales != nullptr ? table.in / 32 : 0);
  }

  void dequantize_part(int64_t token, int64_t first, int64_t count, float* y) const {
    dequantize(args_.table, token, first, count, y);
    if (args_.scale == 1) return;
    for (int64_t i = 0; i < count; ++i) y[i] = y[i] * args_.scale;
  }

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

std::unique_ptr<BoundOp> bind_embedding(Device& device, std::string name, const EmbeddingArgs& args) {
  const WeightView& table = args.table;
  if (table.empty() || table.out < 1 || table.in < 1) {
    fail(name, ": embedding table of shape [", table.out, ", ", table.in, "]");
  }
  const std::string_view format = weight_format_name(table.format);
  const WeightBlock block = weight_block(table.format);
  if (table.in % block.elements != 0) {
    fail(name, ": ", format, " embedding rows need a multiple of ", block.elements, " values, found ", table.in);
  }
  if (table.row_bytes < weight_row_bytes(table.format, table.in)) {
    fail(name, ": embedding rows of ", table.in, " ", format, " values in ", table.row_bytes, " bytes");
  }
  if (table.format == WeightFormat::kMxfp4 && (table.scales == nullptr || table.scale_row_bytes < table.in / 32)) {
    fail(name, ": MXFP4 embedding without its scales");
  }
  if (table.format == WeightFormat::kE4m3) fail(name, ": an E4M3 embedding is not supported");
  if (args.y == nullptr || args.y_stride < table.in) {
    fail(name, ": embedding of ", table.in, " values into rows with stride ", args.y_stride);
  }
  if (device.is_cuda()) return bind_embedding_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<EmbeddingOp>(device.cpu(), std::move(name), args);
}

std::unique_ptr<BoundOp> bind_gather(Device& device, std::string name, const GatherArgs& args) {
  if (args.x == nullptr || args.y == nullptr || args.x == args.y) {
    fail(name, ": gather needs an input and another buffer as output");
  }
  if (args.size < 1 || args.x_stride < args.size || args.y_stride < args.size) {
    fail(name, ": gather of rows of ", args.size, " elements with strides ", args.x_stride, " and ", args.y_stride);
  }
  if (device.is_cuda()) return bind_gather_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<GatherOp>(device.cpu(), std::move(name), args);
}

}  // namespace weir
