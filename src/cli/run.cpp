// weir run: a completion of a prompt of token ids.
#include <boost/json.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/generate.h"

namespace weir::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  std::string prompt_tokens;
  int64_t max_tokens = 128;
  double temperature = 0;
  uint64_t seed = 0;
  bool ignore_eos = false;
  bool json = false;
};

double per_second(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) * 1e3 / ms : 0; }

boost::json::object timings_json(const GenerateTimings& t) {
  boost::json::object out;
  out["prompt_n"] = t.prompt_n;
  out["prompt_ms"] = t.prompt_ms;
  out["prompt_per_second"] = per_second(t.prompt_n, t.prompt_ms);
  out["cached_n"] = 0;
  out["cache_reason"] = "disabled";
  out["predicted_n"] = t.predicted_n;
  out["predicted_ms"] = t.predicted_ms;
  out["predicted_per_second"] = per_second(t.predicted_n, t.predicted_ms);
  out["predicted_gb_per_second"] = per_second(t.predicted_weight_bytes, t.predicted_ms) * 1e-9;
  out["draft_n"] = 0;
  out["draft_accepted_n"] = 0;
  return out;
}

void run(const RunOptions& options) {
  EngineOptions engine_options = options.model.engine_options();
  const std::unique_ptr<Model> model = Model::load(options.model.model);
  const int64_t context = model->spec.max_positions;
  const std::vector<int32_t> prompt = read_tokens(options.prompt_tokens, model->spec.vocab, context);
  const auto prompt_n = static_cast<int64_t>(prompt.size());
  // The last token needs no row of its own.
  const int64_t max_tokens = std::min(options.max_tokens, context - prompt_n + 1);
  engine_options.max_batch_rows = static_cast<int32_t>(std::min<int64_t>(engine_options.max_batch_rows, prompt_n));
  engine_options.max_logit_rows = 1;
  engine_options.max_tokens = prompt_n + max_tokens;
  Engine engine(*model, engine_options);

  GenerateOptions generate_options;
  generate_options.max_tokens = max_tokens;
  generate_options.sampling = {static_cast<float>(options.temperature), options.seed};
  generate_options.ignore_eos = options.ignore_eos;
  if (!options.json) {
    generate_options.on_token = [first = true](int32_t token) mutable {
      std::printf(first ? "%d" : " %d", token);
      std::fflush(stdout);
      first = false;
    };
  }
  const Completion completion = generate(engine, prompt, generate_options);
  const GenerateTimings& t = completion.timings;
  if (options.json) {
    boost::json::object out;
    out["tokens"] = boost::json::array(completion.tokens.begin(), completion.tokens.end());
    out["text"] = nullptr;
    out["finish_reason"] = finish_reason_name(completion.finish_reason);
    out["timings"] = timings_json(t);
    std::printf("%s\n", boost::json::serialize(out).c_str());
    return;
  }
  std::printf("\n");
  std::fflush(stdout);
  std::fprintf(
      stderr,
      "prompt %lld tokens, %.1f tok/s; generated %lld, %.1f tok/s, %.2f GB/s of weights; %d threads, %s kernels; %s\n",
      static_cast<long long>(t.prompt_n), per_second(t.prompt_n, t.prompt_ms),
      static_cast<long long>(completion.tokens.size()), per_second(t.predicted_n, t.predicted_ms),
      per_second(t.predicted_weight_bytes, t.predicted_ms) * 1e-9, engine.device().threads(),
      std::string(kernel_set_name(engine.device().kernels())).c_str(),
      std::string(finish_reason_name(completion.finish_reason)).c_str());
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "complete a prompt");
  const auto options = std::make_shared<RunOptions>();
  options->model.add_to(*command);
  command->add_option("--prompt-tokens", options->prompt_tokens, "JSON file: an array of token ids, taken as they are")
      ->required();
  command->add_option("--max-tokens", options->max_tokens, "tokens to generate at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: greedy")
      ->check(CLI::Range(0.0, 1e4))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the sampling noise")->capture_default_str();
  command->add_flag("--ignore-eos", options->ignore_eos, "go on after the end token");
  command->add_flag("--json", options->json, "print a JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace weir::cli
