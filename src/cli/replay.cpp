// weir replay: what a server or a batch did, once more.
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "engine/identity.h"
#include "engine/scheduler.h"

namespace weir::cli {
namespace {

constexpr int64_t kMostLog = int64_t{4} << 30;

struct ReplayOptions {
  ModelOptions model;
  std::string log, trace, tokens;
};

class Tokens final : public RequestSink {
 public:
  explicit Tokens(const std::string& path) : file_(path) {}
  void on_token(RequestId id, const SampledToken& token) override {
    ++count_;
    if (file_) file_.write(concat("{\"request\":", id, ",\"token\":", token.id, "}\n"));
  }
  void on_end(RequestId id, const RequestEnd& end) override {
    ++ended_;
    if (file_) file_.write(concat("{\"request\":", id, ",\"end\":\"", finish_reason_name(end.reason), "\"}\n"));
  }
  void flush() { file_.flush(); }
  int64_t count() const { return count_; }
  int64_t ended() const { return ended_; }

 private:
  OutputFile file_;
  int64_t count_ = 0, ended_ = 0;
};

void run(const ReplayOptions& options) {
  const std::string log = read_input(options.log, kMostLog);
  const RecordedEngine recorded = RecordedEngine::of(log, options.log);
  OutputFile trace_file(options.trace);
  Tokens tokens(options.tokens);
  const LoadedModel loaded = load_with_text(options.model.model, Words::kOptional);
  EngineOptions wanted = options.model.engine_options();
  recorded.apply(wanted);
  Engine engine(*loaded.model, wanted);
  SchedulerOptions scheduler_options;
  scheduler_options.cache.enabled = recorded.prefix_cache;
  scheduler_options.cache.identity = engine_identity(engine);
  TraceRecorder trace;
  Scheduler scheduler(engine, scheduler_options, tokens, nullptr, &trace);
  const int64_t steps = replay(log, options.log, scheduler);
  tokens.flush();
  trace_file.write(trace.dump());
  trace_file.flush();
  std::fprintf(stderr, "%s, %s, %s ended\n", counted(steps, "step").c_str(), counted(tokens.count(), "token").c_str(),
               counted(tokens.ended(), "request").c_str());
}

}  // namespace

void add_replay(CLI::App& app) {
  CLI::App* command = app.add_subcommand("replay", "repeat what `weir serve --record` or `weir batch --record` wrote");
  const auto options = std::make_shared<ReplayOptions>();
  options->model.add_to(*command);
  command->add_option("LOG", options->log, "the record; rows, sequences and tokens are taken from it")->required();
  command->add_option("--trace", options->trace, "write what the last steps did here, a JSON object a line");
  command->add_option("--tokens", options->tokens, "write the requests' tokens here, a JSON object a line");
  command->callback([options] { run(*options); });
}

}  // namespace weir::cli
