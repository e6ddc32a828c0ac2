// Timing of kernels for benches: many launches in a graph, over inputs that take turns so that the L2 cache can't keep
// them, and the bandwidths that the figures are compared with, measured in the same run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/cuda_roof.h"

namespace weir::bench {

struct CudaTiming {
  double us = 0;       // of one call, the median of the graph's replays
  double best_us = 0;  // of the fastest
};

struct TimingOptions {
  int sets = 1;              // how many sets of inputs take turns: call i uses set i % sets
  double round_us = 2000;    // least time of a replay
  double budget_us = 200e3;  // of all replays together
};

// How many sets of `bytes` each are needed so that a set has left the L2 cache before its next turn.
inline int rotation(const CudaDevice& device, int64_t bytes, int most = 64) {
  const int64_t sets = (5 * device.info().l2_bytes + bytes - 1) / std::max<int64_t>(bytes, 1) + 1;
  return static_cast<int>(std::clamp<int64_t>(sets, 2, most));
}

// `call` queues the launches of one call on the set with this number.
inline CudaTiming time_calls(CudaDevice& device, const TimingOptions& options, const std::function<void(int)>& call) {
  const auto capture = [&](int calls) {
    device.begin_capture();
    for (int i = 0; i < calls; ++i) call(i % options.sets);
    const int graph = device.end_capture();
    if (graph < 0) fail("a bench's graph: ", device.error());
    return graph;
  };
  for (int set = 0; set < options.sets; ++set) call(set);
  int calls = options.sets;
  int graph = capture(calls);
  const auto replay = [&] { return cuda_time_us(device, [&] { device.launch_graph(graph); }); };
  replay();
  double us = replay();
  if (us < options.round_us) {
    calls = options.sets * static_cast<int>(std::min(options.round_us / std::max(us, 1.), 4000. / options.sets) + 1);
    graph = capture(calls);
    replay();
    us = replay();
  }
  std::vector<double> times(static_cast<size_t>(std::clamp(options.budget_us / us, 9., 200.)));
  for (double& time : times) time = replay() / calls;
  std::sort(times.begin(), times.end());
  return {.us = times[times.size() / 2], .best_us = times.front()};
}

// A row of bench/cuda_table.py: what was measured, the shape, who computed it, and what the figures are compared with.
struct BenchRow {
  std::string what;   // "linear bf16"
  std::string shape;  // "4096x4096 m=1"
  double us = 0;
  int64_t bytes = 0;  // that have to be moved; 0: not compared with the bandwidth
  double flops = 0;   // 0: not compared with the products' peak
  double bar_us = 0;  // the goal; 0: none
  std::string by = "weir";
};

// Prints rows as JSON lines, for people with the derived figures at the end.
class CudaReport {
 public:
  explicit CudaReport(CudaDevice& device) : roofs_(measure_cuda_bandwidths(device, int64_t{1} << 30)) {
    std::printf("{\"device\": \"%s\", \"read_gbs\": %.0f, \"copy_gbs\": %.0f}\n", device.info().name.c_str(),
                roofs_.read_gbs, roofs_.copy_gbs);
  }

  const CudaBandwidths& roofs() const { return roofs_; }
  // 2 us a kernel and the bytes at the bandwidth of reading.
  double floor_us(int64_t bytes, int kernels = 1) const {
    return 2. * kernels + static_cast<double>(bytes) / roofs_.read_gbs * 1e-3;
  }

  void add(const BenchRow& row) const {
    std::printf("{\"what\": \"%s\", \"shape\": \"%s\", \"by\": \"%s\", \"us\": %.2f", row.what.c_str(),
                row.shape.c_str(), row.by.c_str(), row.us);
    if (row.bytes > 0) {
      const double gbs = static_cast<double>(row.bytes) / row.us * 1e-3;
      std::printf(", \"gbs\": %.0f, \"read_percent\": %.1f", gbs, 100 * gbs / roofs_.read_gbs);
    }
    if (row.flops > 0) std::printf(", \"tflops\": %.1f", row.flops / row.us * 1e-6);
    if (row.bar_us > 0) std::printf(", \"bar_us\": %.2f, \"of_bar\": %.2f", row.bar_us, row.us / row.bar_us);
    std::printf("}\n");
    std::fflush(stdout);
  }

 private:
  CudaBandwidths roofs_;
};

}  // namespace weir::bench
