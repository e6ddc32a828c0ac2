// weir bench: tokens per second of prompts and of generation, beside what the machine could do at most.
#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "cli/bench_run.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "device/cuda_roof.h"
#include "device/roof.h"
#include "models/builtin.h"

namespace weir::cli {
namespace {

struct BenchOptions {
  std::string synthetic, weights = "bf16";
  std::vector<int64_t> prompts = {512}, generated = {128}, depths = {0}, batches = {1};
  std::vector<int> threads = {0};
  int repeats = 3;
  ModelOptions engine;  // but for its threads
  bool json = false;
};

struct Roofs {
  double read_gb = 0, gflop = 0;
  const char* products = "";  // what gflop is the rate of
};

// Of the device that the engine computes on.
Roofs measure_roofs(Engine& engine) {
  if (engine.gpu() == nullptr) {
    return {measure_read_bandwidth(engine.host()), measure_fma_peak(engine.host()), "fp32 fma peak"};
  }
  const int64_t bytes = std::min<int64_t>(int64_t{1} << 30, engine.gpu()->free_bytes() / 2);
  return {measure_cuda_bandwidths(*engine.gpu(), bytes).read_gbs, 1e3 * measure_cuda_bf16_peak(*engine.gpu()),
          "bf16 peak"};
}

std::string_view kv_dtype_name(StateDtype dtype) {
  return dtype == StateDtype::kF32 ? "f32" : dtype == StateDtype::kF16 ? "f16" : "bf16";
}

struct Spread {
  double mean = 0, deviation = 0;
};

Spread spread(const std::vector<double>& values) {
  Spread out;
  const auto n = static_cast<double>(values.size());
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  if (values.size() > 1) out.deviation = std::sqrt(squares / (n - 1));
  return out;
}

WeightFormat weight_format(const std::string& name) {
  if (name == "q8_0") return WeightFormat::kQ8_0;
  if (name == "q4_0") return WeightFormat::kQ4_0;
  if (name == "mxfp4") return WeightFormat::kMxfp4;
  return WeightFormat::kBf16;
}

std::vector<BenchTest> tests(const BenchOptions& options) {
  std::vector<BenchTest> out;
  for (const int64_t depth : options.depths) {
    for (const int64_t n : options.prompts) {
      if (n > 0) out.push_back({BenchTest::Kind::kPrompt, n, depth, 1});
    }
    for (const int64_t batch : options.batches) {
      for (const int64_t n : options.generated) {
        if (n > 0) out.push_back({BenchTest::Kind::kGenerate, n, depth, batch});
      }
    }
  }
  if (out.empty()) fail("expected a test: -p or -n above 0");
  return out;
}

boost::json::object row(const BenchOptions& options, const BenchTest& test, const BenchResult& result,
                        const Roofs& roofs, Engine& engine) {
  std::vector<double> rates;
  for (const double seconds : result.seconds) rates.push_back(static_cast<double>(test.tokens()) / seconds);
  const Spread rate = spread(rates);
  const double seconds = static_cast<double>(test.tokens()) / rate.mean;
  const double gb = static_cast<double>(result.bytes) * 1e-9 / seconds;
  const bool prompt = test.kind == BenchTest::Kind::kPrompt;
  const double roof = prompt ? roofs.gflop : roofs.read_gb;
  const double reached = prompt ? result.flops * 1e-9 / seconds : gb;
  boost::json::object out;
  out["test"] = test.name();
  out["tokens_per_second"] = rate.mean;
  out["tokens_per_second_stddev"] = rate.deviation;
  out["samples"] = boost::json::array(rates.begin(), rates.end());
  out["gb_per_second"] = gb;
  out["gflop_per_second"] = result.flops * 1e-9 / seconds;
  out["percent_of_roof"] = roof > 0 ? 100 * reached / roof : 0.0;
  out["roof"] = prompt ? roofs.products : "memory read";
  out["bytes_per_token"] = static_cast<double>(result.bytes) / static_cast<double>(test.tokens());
  out["roof_gb_per_second"] = roofs.read_gb;
  out["roof_gflop_per_second"] = roofs.gflop;
  out["n"] = test.n;
  out["depth"] = test.depth;
  out["batch"] = test.batch;
  out["threads"] = engine.host().threads();
  out["kernels"] = kernel_set_name(engine.host().kernels());
  out["kv_dtype"] = kv_dtype_name(engine.options().kv_dtype);
  out["activations"] = options.engine.activations;
  out["max_batch_rows"] = engine.options().max_batch_rows;
  return out;
}

void print_row(const boost::json::object& row) {
  const auto number = [&](const char* key) { return row.at(key).to_number<double>(); };
  std::printf("%-18s %2d %10.2f %8.2f %9.2f %8.1f %% of %s\n", row.at("test").as_string().c_str(),
              row.at("threads").to_number<int>(), number("tokens_per_second"), number("tokens_per_second_stddev"),
              number("gb_per_second"), number("percent_of_roof"), row.at("roof").as_string().c_str());
  std::fflush(stdout);
}

void print_heading(const BenchOptions& options, const Model& model, const std::string& device) {
  std::printf("%s, %s; %s\n", options.engine.model.empty() ? options.synthetic.c_str() : options.engine.model.c_str(),
              human_bytes(static_cast<double>(model.weight_bytes())).c_str(), device.c_str());
  std::printf("%-18s %2s %10s %8s %9s\n", "test", "t", "tok/s", "+-", "GB/s");
  std::fflush(stdout);
}

void bench(const BenchOptions& options) {
  if (!options.engine.model.empty() && !options.synthetic.empty()) {
    fail("expected a MODEL or --synthetic CONFIG.json, found both");
  }
  const std::unique_ptr<Model> model = options.synthetic.empty()
                                           ? Model::load(options.engine.model)
                                           : Model::generate(options.synthetic, weight_format(options.weights),
                                                             parse_device(options.engine.device) >= 0);
  const std::vector<BenchTest> all = tests(options);
  ModelOptions common = options.engine;
  EngineOptions probe;
  size_bench_engine(all, model->spec, probe);  // its errors come before any output
  boost::json::array rows;
  std::string device = cpu_model();
  for (const int threads : options.threads) {
    common.threads = threads;
    EngineOptions engine_options = common.engine_options();
    size_bench_engine(all, model->spec, engine_options);
    Engine engine(*model, engine_options);
    if (engine.gpu() != nullptr) device = engine.gpu()->info().name;
    if (!options.json && rows.empty()) print_heading(options, *model, device);
    const Roofs roofs = measure_roofs(engine);
    for (const BenchTest& test : all) {
      boost::json::object result = row(options, test, run_bench(engine, test, options.repeats), roofs, engine);
      if (!options.json) print_row(result);
      result["model"] = options.engine.model.empty() ? options.synthetic : options.engine.model;
      result["family"] = model->spec.family;
      result["weights"] = options.engine.model.empty() ? options.weights : std::string("as in the files");
      result["model_bytes"] = model->weight_bytes();
      result["repeats"] = options.repeats;
      result["device"] = device;
      rows.push_back(std::move(result));
    }
  }
  if (options.json) std::printf("%s\n", boost::json::serialize(rows).c_str());
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "speed of prompts and generation, beside the machine's roofs");
  const auto options = std::make_shared<BenchOptions>();
  const auto list = [&](const char* flags, auto& values, const char* help, auto low, auto high) {
    command->add_option(flags, values, help)->delimiter(',')->check(CLI::Range(low, high))->capture_default_str();
  };
  constexpr int64_t kMost = int64_t{1} << 24;
  command->add_option("MODEL", options->engine.model, "folder or GGUF file (default: the program's own small Kimi K3)");
  CLI::Option* synthetic =
      command->add_option("--synthetic", options->synthetic, "config.json of a model whose weights are generated");
  command->add_option("--weights", options->weights, "of --synthetic: bf16, q8_0, q4_0 or mxfp4")
      ->needs(synthetic)
      ->check(CLI::IsMember({"bf16", "q8_0", "q4_0", "mxfp4"}))
      ->capture_default_str();
  list("-p", options->prompts, "lengths of prompts; 0: none", int64_t{0}, kMost);
  list("-n", options->generated, "tokens to generate; 0: none", int64_t{0}, kMost);
  list("-d", options->depths, "tokens that are there already", int64_t{0}, kMost);
  list("-b", options->batches, "sequences that generate together", int64_t{1}, int64_t{4096});
  list("-t,--threads", options->threads, "threads (0: all processors)", 0, 1024);
  command->add_option("-r", options->repeats, "repeats")->check(CLI::Range(1, 1000))->capture_default_str();
  options->engine.add_engine_to(*command);
  command->add_flag("--json", options->json, "print a JSON list of objects");
  command->callback([options] {
    if (options->engine.model.empty() && options->synthetic.empty()) options->engine.model = kBuiltinModel;
    bench(*options);
  });
}

}  // namespace weir::cli
