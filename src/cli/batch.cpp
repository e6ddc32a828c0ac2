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
#include "cli/output_file.h"
#include "cli/record.h"
#include "cli/serving_options.h"
#include "cli/terminal.h"
#include "engine/identity.h"

namespace weir::cli {
namespace {

struct BatchOptions {
  ServingOptions serving{.max_tokens = 32768};
  std::string input, output, trace;
};

void batch(const BatchOptions& options) {
  const EngineOptions wanted = options.serving.engine_options();
  BatchInput input(options.input);
  BatchResults results(options.output, input);
  if (results.cut_torn_line()) {
    std::fprintf(stderr, "%s: its last line was torn and is cut off\n", printable(options.output).c_str());
  }
  const int64_t total = input.is_file() ? check_batch_ids(input) : -1;
  OutputFile trace(options.trace);
  Record record(options.serving.record);

  const LoadedModel loaded = load_with_text(options.serving.model.model, Words::kNeeded);
  loaded.text.tokenizer();  // the error says why
  Engine engine(*loaded.model, wanted);
  const StoreKey identity = engine_identity(engine);
  const openai::Served served = options.serving.served(loaded, engine, identity);
  const std::unique_ptr<BlockStore> store = options.serving.store(identity);
  Mailbox mailbox;
  bool all = false;
  std::string summary;
  const InterruptGuard interrupts;
  {
    Service::Options service_options = options.serving.service_options(identity);
    service_options.scheduler.log = record.begin(engine, service_options.scheduler);
    Service service(engine, service_options, store.get());
    BatchRun run(input, results, served, options.serving.sampling(), mailbox, service, total);
    all = run.run();
    const double seconds = run.seconds();  // without the disk's
    trace.write(service.trace());
    trace.flush();
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
  options->serving.add_to(*command);
  command->add_option("IN", options->input, "requests, a JSON object a line; - for standard input")->required();
  command->add_option("OUT", options->output, "results are appended; requests that it answers already are skipped")
      ->required();
  command->add_option("--trace", options->trace, "write what the last steps did here, a JSON object a line");
  command->callback([options] { batch(*options); });
}

}  // namespace weir::cli
