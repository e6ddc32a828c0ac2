// linear against the machine's roofs: `linear_bench [out in]`. For few rows the op goes through copies of the matrix,
// more than the caches hold, as a model's layers do.
#include "ops/linear/linear.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "device/roof.h"

namespace weir {
namespace {

constexpr int64_t kCopiesBytes = int64_t{416} << 20;
constexpr int kMaxRows = 512;

int64_t row_bytes(WeightFormat format, int64_t in) {
  switch (format) {
    case WeightFormat::kF32:
      return in * 4;
    case WeightFormat::kMxfp4:
      return in / 2;
    default:
      return in * 2;
  }
}

struct Weights {
  Mapping memory;
  std::vector<WeightView> copies;
};

Weights make_weights(WeightFormat format, int64_t out, int64_t in) {
  WeightView view{.format = format, .out = out, .in = in, .row_bytes = row_bytes(format, in)};
  if (format == WeightFormat::kMxfp4) view.scale_row_bytes = in / 32;
  const int64_t count = kCopiesBytes / view.bytes() + 1;
  Weights weights{Mapping(count * view.bytes()), {}};
  // Any bits do, except NaN and denormals, which can cost time: bytes 0x3c..0x3f are normal in every format (as E8M0,
  // 2^-65).
  std::mt19937 random(1);
  for (auto& word : weights.memory.as<uint32_t>()) word = 0x3c3c3c3cu | (static_cast<uint32_t>(random()) & 0x83838383u);
  for (int64_t i = 0; i < count; ++i) {
    view.data = weights.memory.data() + i * view.bytes();
    if (view.scale_row_bytes != 0) view.scales = view.data + view.out * view.row_bytes;
    weights.copies.push_back(view);
  }
  return weights;
}

void bench_format(CpuDevice& device, WeightFormat format, int64_t out, int64_t in, double read_roof, double fma_peak) {
  const Weights weights = make_weights(format, out, in);
  const Mapping x_memory(kMaxRows * in * 4),
      y_memory(kMaxRows * out * 4);  // rows aligned to cache lines, as in an engine
  const auto x = x_memory.as<float>(), y = y_memory.as<float>();
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) * 0.01f - 0.5f;
  std::vector<std::unique_ptr<BoundOp>> ops;
  for (const WeightView& weight : weights.copies) {
    ops.push_back(bind_linear(device, "bench",
                              {.weight = weight, .x = x.data(), .x_stride = in, .y = y.data(), .y_stride = out}));
  }
  for (int32_t rows : {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 512}) {
    const StepView step{.rows = rows};
    const size_t calls =
        rows <= 16 ? ops.size() : std::max<size_t>(1, std::min<size_t>(ops.size(), 192 / static_cast<size_t>(rows)));
    double best = 1e30;
    for (int pass = 0; pass < 4; ++pass) {
      const auto start = std::chrono::steady_clock::now();
      for (size_t i = 0; i < calls; ++i) ops[i]->run(step);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      best = std::min(best, spent.count() / static_cast<double>(calls));
    }
    const Cost cost = ops[0]->cost(rows, 0);
    const double gb = static_cast<double>(cost.weight_bytes) / best * 1e-9;
    const double gflops = cost.flops / best * 1e-9;
    std::printf("%-9s %-6s %7d %5d %10.1f %8.2f %7.1f%% %9.1f %7.1f%%\n", kernel_set_name(device.kernels()).data(),
                weight_format_name(format).data(), device.threads(), rows, best * 1e6, gb, 100 * gb / read_roof, gflops,
                100 * gflops / fma_peak);
    std::fflush(stdout);
  }
}

void bench(int64_t out, int64_t in) {
  for (int threads = default_threads();; threads = 1) {
    for (KernelSet set : {KernelSet::kAvx512, KernelSet::kAvx2}) {
      if (!kernel_set_supported(set)) {
        std::printf("%s: skipped, not on this processor\n", kernel_set_name(set).data());
        continue;
      }
      CpuDevice device(threads, set);
      const double read_roof = measure_read_bandwidth(device);
      const double fma_peak = measure_fma_peak(device);
      std::printf("\n[%lld x %lld], %d threads, %s: read roof %.1f GB/s, FMA peak %.0f GFLOP/s\n",
                  static_cast<long long>(out), static_cast<long long>(in), threads, kernel_set_name(set).data(),
                  read_roof, fma_peak);
      std::printf("%-9s %-6s %7s %5s %10s %8s %8s %9s %8s\n", "kernels", "format", "threads", "rows", "us", "GB/s",
                  "of roof", "GFLOP/s", "of peak");
      for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kMxfp4, WeightFormat::kF16, WeightFormat::kF32}) {
        bench_format(device, format, out, in, read_roof, fma_peak);
      }
    }
    if (threads == 1) return;
  }
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  const int64_t out = argc > 2 ? std::atoll(argv[1]) : 4096;
  const int64_t in = argc > 2 ? std::atoll(argv[2]) : 4096;
  weir::bench(out, in);
}
