// linear against the machine's roofs: `linear_bench [out in [format [kernels [threads [rows]]]]]`. For few rows the op
// goes through copies of the matrix, more than the caches hold, as a model's layers do.
#include "ops/linear/linear.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include "device/roof.h"

namespace weir {
namespace {

constexpr int64_t kCopiesBytes = int64_t{416} << 20;
constexpr int kMaxRows = 512;

struct Weights {
  Mapping memory;
  std::vector<WeightView> copies;
};

Weights make_weights(WeightFormat format, int64_t out, int64_t in) {
  WeightView view{.format = format, .out = out, .in = in, .row_bytes = weight_row_bytes(format, in)};
  if (format == WeightFormat::kMxfp4) view.scale_row_bytes = in / 32;
  if (format == WeightFormat::kE4m3) {
    view.scale_rows = view.scale_cols = 128;
    view.scale_row_bytes = (in + 127) / 128 * 4;
  }
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

void bench_format(CpuDevice& device, WeightFormat format, Activations activations, int64_t out, int64_t in,
                  double read_roof, double fma_peak, int only_rows) {
  const Weights weights = make_weights(format, out, in);
  const Mapping x_memory(kMaxRows * in * 4),
      y_memory(kMaxRows * out * 4);  // rows aligned to cache lines, as in an engine
  const auto x = x_memory.as<float>(), y = y_memory.as<float>();
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) * 0.01f - 0.5f;
  std::vector<std::unique_ptr<BoundOp>> ops;
  for (const WeightView& weight : weights.copies) {
    ops.push_back(bind_linear(device, "bench",
                              {.weight = weight,
                               .x = x.data(),
                               .x_stride = in,
                               .y = y.data(),
                               .y_stride = out,
                               .activations = activations,
                               .max_rows = kMaxRows}));
  }
  for (int32_t rows : {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 512}) {
    if (only_rows != 0 && rows != only_rows) continue;
    const StepView step{.rows = rows};
    const size_t calls =
        rows <= 16 ? ops.size() : std::max<size_t>(1, std::min<size_t>(ops.size(), 192 / static_cast<size_t>(rows)));
    double best = 1e30;
    for (int pass = 0; pass < 6; ++pass) {
      const auto start = std::chrono::steady_clock::now();
      for (size_t i = 0; i < calls; ++i) ops[i]->run(step);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      best = std::min(best, spent.count() / static_cast<double>(calls));
    }
    const Cost cost = ops[0]->cost(rows, 0);
    const double gb = static_cast<double>(cost.weight_bytes) / best * 1e-9;
    const double gflops = cost.flops / best * 1e-9;
    std::printf("%-9s %-6s %-4s %7d %5d %10.1f %8.2f %7.1f%% %9.1f %7.1f%%\n", kernel_set_name(device.kernels()).data(),
                weight_format_name(format).data(), activations == Activations::kF32 ? "f32" : "auto", device.threads(),
                rows, best * 1e6, gb, 100 * gb / read_roof, gflops, 100 * gflops / fma_peak);
    std::fflush(stdout);
  }
}

constexpr WeightFormat kFormats[] = {
    WeightFormat::kBf16, WeightFormat::kF16,   WeightFormat::kF32,  WeightFormat::kMxfp4, WeightFormat::kMxfp4Block,
    WeightFormat::kE4m3, WeightFormat::kQ4_0,  WeightFormat::kQ4_1, WeightFormat::kQ5_0,  WeightFormat::kQ5_1,
    WeightFormat::kQ8_0, WeightFormat::kIq4Nl, WeightFormat::kQ2_K, WeightFormat::kQ3_K,  WeightFormat::kQ4_K,
    WeightFormat::kQ5_K, WeightFormat::kQ6_K,  WeightFormat::kIq4Xs};

void bench(CpuDevice& device, int64_t out, int64_t in, std::string_view only, int only_rows) {
  const double read_roof = measure_read_bandwidth(device);
  const double fma_peak = measure_fma_peak(device);
  std::printf("\n[%lld x %lld], %d threads, %s: read roof %.1f GB/s, FMA peak %.0f GFLOP/s\n",
              static_cast<long long>(out), static_cast<long long>(in), device.threads(),
              kernel_set_name(device.kernels()).data(), read_roof, fma_peak);
  std::printf("%-9s %-6s %-4s %7s %5s %10s %8s %8s %9s %8s\n", "kernels", "format", "x", "threads", "rows", "us",
              "GB/s", "of roof", "GFLOP/s", "of peak");
  for (WeightFormat format : kFormats) {
    if (only != "all" && only != weight_format_name(format)) continue;
    if (in % weight_block(format).elements != 0) {
      std::printf("%s: skipped, rows are no whole blocks\n", weight_format_name(format).data());
      continue;
    }
    for (Activations activations : {Activations::kAuto, Activations::kF32}) {
      const bool coded = row_coding(format, activations) != RowCoding::kNone;
      if (activations == Activations::kAuto && !coded) continue;  // the same as f32
      bench_format(device, format, activations, out, in, read_roof, fma_peak, only_rows);
    }
  }
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  const int64_t out = argc > 2 ? std::atoll(argv[1]) : 4096;
  const int64_t in = argc > 2 ? std::atoll(argv[2]) : 4096;
  const std::string_view format = argc > 3 ? argv[3] : "all", kernels = argc > 4 ? argv[4] : "all";
  const int threads = argc > 5 ? std::atoi(argv[5]) : 0;
  for (const int n : {weir::default_threads(), 1}) {
    if (threads != 0 && n != threads) continue;
    for (const weir::KernelSet set : {weir::KernelSet::kAvx512, weir::KernelSet::kAvx2}) {
      if (kernels != "all" && kernels != weir::kernel_set_name(set)) continue;
      if (!weir::kernel_set_supported(set)) {
        std::printf("%s: skipped, not on this processor\n", weir::kernel_set_name(set).data());
        continue;
      }
      weir::CpuDevice device(n, set);
      weir::bench(device, out, in, format, argc > 6 ? std::atoi(argv[6]) : 0);
    }
  }
}
