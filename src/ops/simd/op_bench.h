// What benches of ops share: the roofs of this machine once per device, the best of several passes, one line per case.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "device/cpu.h"
#include "device/roof.h"
#include "ops/bound_op.h"

namespace weir {

class OpBench {
 public:
  OpBench(int threads, KernelSet kernels) : device_(threads, kernels) {
    read_roof_ = measure_read_bandwidth(device_);
    fma_peak_ = measure_fma_peak(device_);
    std::printf("\n%s, %d threads: read roof %.1f GB/s, FMA peak %.0f GFLOP/s\n%-44s %10s %8s %8s %9s %8s\n",
                kernel_set_name(kernels).data(), threads, read_roof_, fma_peak_, "case", "us", "GB/s", "of roof",
                "GFLOP/s", "of peak");
  }
  CpuDevice& device() { return device_; }

  // pass() makes `calls` calls; bytes and flops of one call. The best of passes for about half a second, so that a pass
  // undisturbed by other work is likely among them.
  template <class Pass>
  void line(const std::string& label, int64_t calls, double bytes, double flops, Pass pass) {
    double best = 1e30;
    double total = 0;
    for (int i = 0; i < 3 || total < 0.5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      pass();
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      best = std::min(best, spent.count() / static_cast<double>(calls));
      total += spent.count();
    }
    const double gb = bytes / best * 1e-9;
    const double gflops = flops / best * 1e-9;
    std::printf("%-44s %10.2f %8.2f %7.1f%% %9.2f %7.2f%%\n", label.c_str(), best * 1e6, gb, 100 * gb / read_roof_,
                gflops, 100 * gflops / fma_peak_);
    std::fflush(stdout);
  }

  // The op again and again on the same rows (in cache when they fit), a few hundred microseconds a pass; bytes: read
  // and written.
  void repeat(const std::string& label, BoundOp& op, int32_t rows, double bytes) {
    StepView step;
    step.rows = rows;
    op.run(step);
    const auto start = std::chrono::steady_clock::now();
    op.run(step);
    const std::chrono::duration<double> once = std::chrono::steady_clock::now() - start;
    const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(3e-4 / once.count()), 1, 1000);
    line(label, calls, bytes, op.cost(rows, 0).flops, [&] {
      for (int64_t i = 0; i < calls; ++i) op.run(step);
    });
  }

 private:
  CpuDevice device_;
  double read_roof_ = 0;
  double fma_peak_ = 0;
};

// body(bench) for every vector kernel set of this processor, with all threads and with one.
template <class Body>
void each_device(Body body) {
  for (const KernelSet set : {KernelSet::kAvx512, KernelSet::kAvx2}) {
    if (!kernel_set_supported(set)) {
      std::printf("%s: skipped, not on this processor\n", kernel_set_name(set).data());
      continue;
    }
    const int all = default_threads();
    for (int threads = all;; threads = 1) {
      OpBench bench(threads, set);
      body(bench);
      if (threads == 1) break;
    }
  }
}

inline void fill(const Mapping& memory) {
  size_t i = 0;
  for (float& value : memory.as<float>()) value = static_cast<float>(i++ % 97) * 0.05f - 2.4f;
}

}  // namespace weir
