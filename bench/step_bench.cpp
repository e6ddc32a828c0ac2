// End-to-end steps of a model: one row and 64 rows a step, and decoding, beside the machine's roofs of the same run.
//   step_bench MODEL [threads] [f32|f16]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>

#include "base/error.h"
#include "device/roof.h"
#include "engine/engine.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

struct Measured {
  double seconds = 0;       // median of a step
  double weight_bytes = 0;  // mean of a step
};

// `steps` steps of `rows` rows each, from a sequence that starts at position 0.
Measured measure(Engine& engine, int32_t rows, int steps) {
  std::mt19937 random(1);
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  std::vector<double> times;
  const int64_t before = engine.device().counters().weight_bytes_read;
  for (int i = 0; i < steps; ++i) {
    std::vector<int32_t> tokens(static_cast<size_t>(rows));
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(random() % static_cast<uint32_t>(engine.model().spec.vocab));
    const SpanRequest request{sequence.get(), tokens, LogitsWanted::kLast};
    const auto start = Clock::now();
    if (engine.step({&request, 1}) != StepStatus::kDone) fail("out of blocks");
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    sequence->accept(sequence->length());
  }
  std::ranges::nth_element(times, times.begin() + steps / 2);
  const auto read = static_cast<double>(engine.device().counters().weight_bytes_read - before);
  return {times[static_cast<size_t>(steps / 2)], read / steps};
}

void bench(const std::string& folder, int threads, StateDtype kv_dtype) {
  const std::unique_ptr<Model> model = Model::load(folder);
  EngineOptions options;
  options.threads = threads;
  options.kernels = best_kernel_set();
  options.max_batch_rows = 512;
  options.max_logit_rows = 1;
  options.kv_dtype = kv_dtype;
  options.max_tokens = 4096;
  Engine engine(*model, options);
  std::printf("%s, %d threads, %s kernels, state %s\n", folder.c_str(), threads,
              std::string(kernel_set_name(options.kernels)).c_str(), kv_dtype == StateDtype::kF32 ? "f32" : "f16");
  std::printf("%-10s %10s %10s %10s %8s %10s %8s\n", "rows", "ms/step", "tok/s", "GB/s", "% read", "GFLOP/s", "% FMA");
  measure(engine, 64, 2);  // page in the weights
  double single = 0, wide = 0;
  // The roofs drift: each measurement stands between its own.
  for (int32_t rows : {1, 64, 1, 64, 512}) {
    const double read = measure_read_bandwidth(engine.device(), int64_t{512} << 20);
    const double fma = measure_fma_peak(engine.device());
    const Measured m = measure(engine, rows, rows == 1 ? 64 : 5);
    Cost cost;
    for (size_t i = 0; i < engine.circuit().size(); ++i) cost += engine.circuit().op(i).cost(rows, rows);
    const double gb = m.weight_bytes / m.seconds * 1e-9, gflops = cost.flops / m.seconds * 1e-9;
    std::printf("%-10d %10.3f %10.1f %10.2f %7.0f%% %10.1f %7.0f%%\n", rows, m.seconds * 1e3, rows / m.seconds, gb,
                100 * gb / read, gflops, 100 * gflops / fma);
    if (rows == 1) single = m.seconds;
    if (rows == 64) wide = m.seconds;
  }
  std::printf("a step of 64 rows takes %.3f of 64 steps of one row\n", wide / (64 * single));
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: step_bench MODEL [threads] [f32|f16]\n");
    return 2;
  }
  try {
    const bool f32 = argc > 3 && std::string(argv[3]) == "f32";
    weir::bench(argv[1], argc > 2 ? std::atoi(argv[2]) : weir::default_threads(),
                f32 ? weir::StateDtype::kF32 : weir::StateDtype::kF16);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
