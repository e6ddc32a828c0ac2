// weir batch: many requests from a file, answered together.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/batch_run.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "engine/identity.h"

namespace weir::cli {
namespace {

struct BatchOptions {
  ModelOptions model;
  std::string input, output, trace;
  int64_t max_sequences = 16, max_tokens = 32768;
  double target_step_ms = 0;
  std::string cache_dir;
  int64_t cache_disk_bytes = int64_t{16} << 30, cache_host_bytes = 0;
  bool no_prefix_cache = false;
  double temperature = 0;
  uint64_t seed = 0;

  SamplingOptions sampling() const { return {static_cast<float>(temperature), seed}; }
};

EngineOptions engine_options(const BatchOptions& options) {
  EngineOptions out = options.model.engine_options();
  if (out.max_batch_rows < options.max_sequences) {
    fail("--max-batch-rows: expected at least the ", options.max_sequences, " of --max-sequences, found ",
         out.max_batch_rows);
  }
  out.max_sequences = options.max_sequences;
  out.max_logit_rows = static_cast<int32_t>(options.max_sequences);
  out.max_tokens = options.max_tokens;
  out.all_blocks = true;
  if (!options.no_prefix_cache) out.cached_anchor_memory = available_memory() / 8;
  return out;
}

std::unique_ptr<BlockStore> store_for(const BatchOptions& options, const StoreKey& identity) {
  if (options.no_prefix_cache || (options.cache_dir.empty() && options.cache_host_bytes == 0)) return nullptr;
  BlockStore::Options out;
  out.host_bytes = options.cache_host_bytes;
  out.directory = options.cache_dir;
  out.disk_bytes = options.cache_dir.empty() ? 0 : options.cache_disk_bytes;
  out.identity = identity;
  return std::make_unique<BlockStore>(out);
}

class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) fail(path, ": expected a file, found a directory");
    file_.reset(std::fopen(path.c_str(), "w"));
    if (!file_) fail(path, ": can't be written");
  }
  void write(Service& service) {
    if (!file_) return;
    const std::string lines = service.trace();
    const bool good = std::fwrite(lines.data(), 1, lines.size(), file_.get()) == lines.size();
    if (std::fflush(file_.get()) != 0 || !good) fail(path_, ": can't be written");
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

std::string fingerprint(const StoreKey& identity) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(identity.high));
  return concat("weir-" WEIR_VERSION "-", text);
}

void batch(const BatchOptions& options) {
  const EngineOptions wanted = engine_options(options);
  BatchInput input(options.input);
  BatchResults results(options.output, input);
  if (results.cut_torn_line()) {
    std::fprintf(stderr, "%s: its last line was torn and is cut off\n", printable(options.output).c_str());
  }
  const int64_t total = input.is_file() ? check_batch_ids(input) : -1;
  TraceFile trace(options.trace);

  const LoadedModel loaded = load_with_text(options.model.model, Words::kNeeded);
  const ModelSpec& spec = loaded.model->spec;
  loaded.text.tokenizer();  // the error says why
  Engine engine(*loaded.model, wanted);
  const StoreKey identity = engine_identity(engine);
  const openai::Served served{.text = &loaded.text,
                              .name = std::filesystem::path(options.model.model).filename().string(),
                              .fingerprint = fingerprint(identity),
                              .vocab = spec.vocab,
                              .context = spec.max_positions,
                              .tokens = options.max_tokens,
                              .stop_tokens = spec.stop_tokens};
  const std::unique_ptr<BlockStore> store = store_for(options, identity);
  Mailbox mailbox;
  Service::Options service_options;
  if (options.target_step_ms > 0) service_options.scheduler.target_step_ms = options.target_step_ms;
  service_options.scheduler.cache.enabled = !options.no_prefix_cache;
  service_options.scheduler.cache.identity = identity;
  bool all = false;
  std::string summary;
  const InterruptGuard interrupts;
  {
    Service service(engine, service_options, store.get());
    BatchRun run(input, results, served, options.sampling(), mailbox, service, total);
    all = run.run();
    const double seconds = run.seconds();  // without the disk's
    trace.write(service);
    run.stop();
    summary = batch_summary(run.counts(), service.snapshot().scheduler.preemptions, seconds);
  }
  if (store) store->flush();
  std::fprintf(stderr, "%s\n", summary.c_str());
  if (!all) fail("stopped by Ctrl-C: the same command goes on with what is left");
}

}  // namespace

void add_batch(CLI::App& app) {
  CLI::App* command = app.add_subcommand("batch", "answer a file of requests in OpenAI's batch format");
  const auto options = std::make_shared<BatchOptions>();
  options->model.add_to(*command);
  command->add_option("IN", options->input, "requests, a JSON object a line; - for standard input")->required();
  command->add_option("OUT", options->output, "results are appended; requests that it answers already are skipped")
      ->required();
  command->add_option("--max-sequences", options->max_sequences, "requests that run at the same time")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  command->add_option("--max-tokens", options->max_tokens, "tokens that there are pages for, of all requests together")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 32))
      ->capture_default_str();
  command->add_option("--target-step-ms", options->target_step_ms, "time of a step while requests are decoding")
      ->check(finite())
      ->check(CLI::Range(0.0, 1e6))
      ->default_str("100");
  command->add_option("--cache-dir", options->cache_dir, "keep computed prompts in files here, for later runs");
  command->add_option("--cache-disk-bytes", options->cache_disk_bytes, "that the files may have")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->add_option("--cache-host-bytes", options->cache_host_bytes, "memory for what leaves the pages")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->add_flag("--no-prefix-cache", options->no_prefix_cache, "compute every prompt from its beginning");
  command->add_option("--temperature", options->temperature, "of requests that have none; 0: greedy")
      ->check(finite())
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of requests that have none")
      ->check(unsigned_64())
      ->capture_default_str();
  command->add_option("--trace", options->trace, "write what the last steps did here, a JSON object a line");
  command->callback([options] { batch(*options); });
}

}  // namespace weir::cli
