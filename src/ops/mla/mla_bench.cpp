// Absorb and expand: bound by reading kv_b with few rows, by FMAs with many.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "base/number.h"
#include "device/roof.h"
#include "ops/mla/mla.h"

namespace weir {
namespace {

// Many layers' weights in turn, so that they come from memory as in a step of a model.
double seconds_per_run(const std::vector<std::unique_ptr<BoundOp>>& layers, const StepView& step) {
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (const auto& op : layers) op->run(step);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / static_cast<double>(layers.size()));
  }
  return best;
}

void measure(CpuDevice& device, bool absorb, int64_t heads, int32_t rows, double read_roof, double fma_roof) {
  const int64_t nope = 128, extra = 64, value = 128, latent = 512;
  const int64_t out = heads * (nope + value);
  const size_t layers = rows > 16 ? 2 : 24;
  std::vector<uint16_t> weights(layers * static_cast<size_t>(out * latent));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = f32_to_bf16(0.01f * static_cast<float>(i % 31) - 0.1f);
  std::vector<float> x(static_cast<size_t>(rows * heads * (latent + extra)), 0.5f), y = x;
  std::vector<std::unique_ptr<BoundOp>> ops;
  for (size_t i = 0; i < layers; ++i) {
    MlaProjectArgs args{
        .kv_b = {.format = WeightFormat::kBf16,
                 .out = out,
                 .in = latent,
                 .data = reinterpret_cast<const std::byte*>(weights.data() + i * static_cast<size_t>(out * latent)),
                 .row_bytes = latent * 2},
        .heads = heads,
        .nope = nope,
        .extra = extra,
        .value = value,
        .latent = latent,
        .x = x.data(),
        .x_stride = heads * (absorb ? nope + extra : latent),
        .y = y.data(),
        .y_stride = heads * (absorb ? latent + extra : value)};
    ops.push_back(absorb ? bind_mla_absorb(device, "absorb", args) : bind_mla_expand(device, "expand", args));
  }
  const double seconds = seconds_per_run(ops, {.rows = rows});
  const Cost cost = ops[0]->cost(rows, 0);
  const double gbs = static_cast<double>(cost.weight_bytes) / seconds * 1e-9;
  const double gflops = cost.flops / seconds * 1e-9;
  std::printf("%s %2d heads %4d rows %9.1f us %7.1f GB/s (%3.0f%% of read roof) %7.1f GFLOP/s (%3.0f%% of FMA peak)\n",
              absorb ? "absorb" : "expand", static_cast<int>(heads), rows, seconds * 1e6, gbs, 100 * gbs / read_roof,
              gflops, 100 * gflops / fma_roof);
}

void run(KernelSet set) {
  CpuDevice device(default_threads(), set);
  const double read_roof = measure_read_bandwidth(device, 256 << 20);
  const double fma_roof = measure_fma_peak(device);
  std::printf("%s, %d threads: read %.1f GB/s, FMA %.0f GFLOP/s\n", kernel_set_name(set).data(), device.threads(),
              read_roof, fma_roof);
  for (bool absorb : {true, false}) {
    for (int64_t heads : {32, 96}) {
      for (int32_t rows : {1, 4, 16, 512}) {
        if (heads == 96 && rows > 1) continue;
        measure(device, absorb, heads, rows, read_roof, fma_roof);
      }
    }
  }
}

}  // namespace
}  // namespace weir

int main() {
  for (weir::KernelSet set : {weir::KernelSet::kAvx2, weir::KernelSet::kAvx512}) {
    if (weir::kernel_set_supported(set)) weir::run(set);
  }
}
