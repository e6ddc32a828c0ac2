// End-to-end steps of a model: one row and 64 rows a step, and decoding, beside the machine's roofs of the same run.
//   step_bench MODEL [threads] [f32|f16]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/roof.h"
#include "engine/engine.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

// Time of each kind of op: its name without the layer's number.
class Profile : public StepObserver {
 public:
  void start() { last_ = Clock::now(); }
  void after(const BoundOp& op, Buffer) override {
    const auto now = Clock::now();
    std::string name = op.name();
    if (name.starts_with("layers.")) name = name.substr(name.find('.', 7) + 1);
    Kind& kind = kinds_[name];
    kind.seconds += std::chrono::duration<double>(now - last_).count();
    ++kind.calls;
    last_ = now;
  }
  void print(int steps) const {
    std::vector<std::pair<std::string, Kind>> sorted(kinds_.begin(), kinds_.end());
    std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    for (const auto& [name, kind] : sorted) {
      std::printf("  %-28s %5d calls a step %10.1f us a step %8.2f us a call\n", name.c_str(), kind.calls / steps,
                  kind.seconds * 1e6 / steps, kind.seconds * 1e6 / kind.calls);
    }
  }

 private:
  struct Kind {
    double seconds = 0;
    int calls = 0;
  };
  Clock::time_point last_;
  std::map<std::string, Kind> kinds_;
};

struct Measured {
  double seconds = 0;       // median of a step
  double weight_bytes = 0;  // mean of a step
};

// `steps` steps of `rows` rows each, from a sequence that starts at position 0.
Measured measure(Engine& engine, int32_t rows, int steps, Profile* profile = nullptr) {
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
    if (profile != nullptr) profile->start();
    if (engine.step({&request, 1}, profile) != StepStatus::kDone) fail("out of blocks");
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    sequence->accept(sequence->length());
  }
  std::ranges::nth_element(times, times.begin() + steps / 2);
  const auto read = static_cast<double>(engine.device().counters().weight_bytes_read - before);
  return {times[static_cast<size_t>(steps / 2)], read / steps};
}

void bench(const std::string& folder, int threads, StateDtype kv_dtype) {
  const std::unique_ptr<Model> model = Model::load(folder);
  constexpr int64_t kLongest = 5 * 512;  // rows of the longest sequence below
  if (model->spec.max_positions < kLongest) {
    fail(folder, ": expected a context of at least ", kLongest, " tokens, found ", model->spec.max_positions);
  }
  EngineOptions options;
  options.threads = threads;
  options.kernels = best_kernel_set();
  options.max_batch_rows = 512;
  options.max_logit_rows = 1;
  options.kv_dtype = kv_dtype;
  options.max_tokens = 4096;
  options.activations = Activations::kAuto;
  Engine engine(*model, options);
  std::printf("%s, %d threads, %s kernels, state %s\n", folder.c_str(), threads,
              std::string(kernel_set_name(options.kernels)).c_str(), kv_dtype == StateDtype::kF32 ? "f32" : "f16");
  std::printf("%-10s %10s %10s %10s %8s %10s %8s\n", "rows", "ms/step", "tok/s", "GB/s", "% read", "GFLOP/s", "% FMA");
  measure(engine, 64, 2);  // page in the weights
  double single = 0, wide = 0;
  // The roofs drift: each measurement stands between its own.
  for (int32_t rows : {1, 64, 1, 64, 512}) {
    const double read = measure_read_bandwidth(engine.host(), int64_t{512} << 20);
    const double fma = measure_fma_peak(engine.host());
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
  for (int32_t rows : {1, 64}) {
    Profile profile;
    const int steps = rows == 1 ? 64 : 5;
    measure(engine, rows, steps, &profile);
    std::printf("ops of a step of %d rows\n", rows);
    profile.print(steps);
  }
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: step_bench MODEL [threads] [f32|f16]\n");
    return 2;
  }
  try {
    int threads = weir::default_threads();
    if (argc > 2) {
      const std::string_view text = argv[2];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
      if (error != std::errc() || end != text.data() + text.size() || threads < 1 || threads > 1024) {
        weir::fail("threads: expected a number from 1 to 1024, found ", weir::printable(text));
      }
    }
    const std::string_view dtype = argc > 3 ? argv[3] : "f16";
    if (dtype != "f32" && dtype != "f16") weir::fail("expected f32 or f16, found ", weir::printable(dtype));
    if (argc > 4) weir::fail("expected at most three arguments, found ", argc - 1);
    weir::bench(argv[1], threads, dtype == "f32" ? weir::StateDtype::kF32 : weir::StateDtype::kF16);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
