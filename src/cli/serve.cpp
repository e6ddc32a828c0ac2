// weir serve: a model behind HTTP.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/record.h"
#include "cli/serving_options.h"
#include "cli/shutdown.h"
#include "engine/identity.h"
#include "engine/sampling_defaults.h"
#include "server/application.h"

namespace weir::cli {
namespace {

using std::chrono::milliseconds;

struct ServeOptions {
  ServingOptions serving{
      .max_sequences = 32, .default_temperature = "the model's own", .default_seed = "a new one for each"};
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string key_file, cors_origin;
  std::vector<std::string> aliases;
  int64_t max_queue = 256;
  double drain_seconds = 30;
  int http_threads = 2;
  http::Limits limits;
};

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

std::string url(const ServeOptions& options, uint16_t port) {
  const bool v6 = options.host.find(':') != std::string::npos;
  return concat("http://", v6 ? "[" : "", options.host, v6 ? "]" : "", ":", port);
}

// One line of text without spaces at its ends, as headers and names are.
CLI::Validator word() {
  return CLI::Validator(
      [](std::string& text) {
        const bool good =
            !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return c > ' ' && c != 127; });
        return good ? std::string() : "expected a word, found " + (text.empty() ? "nothing" : printable(text));
      },
      "");
}

void say(std::string_view line) { std::fprintf(stderr, "weir: %s\n", one_line(line).c_str()); }

// Between a start and an end: what is loaded, and how it ends.
class Serving {
 public:
  Serving(const ServeOptions& options, Shutdown& shutdown, Application& application, http::Server& server)
      : options_(options),
        shutdown_(shutdown),
        application_(application),
        server_(server),
        record_(options.serving.record) {}

  void run() {
    EngineOptions wanted = options_.serving.engine_options();
    const LoadedModel loaded = load_with_text(options_.serving.model.model, Words::kNeeded);
    loaded.text.tokenizer();  // the error says why
    wanted.page_memory = (available_memory() - loaded.model->weight_bytes()) / 2;
    Engine engine(*loaded.model, wanted);
    const StoreKey identity = engine_identity(engine);
    openai::Served served = options_.serving.served(loaded, engine, identity);
    if (options_.max_queue > 0) served.most_answers = engine.options().max_sequences + options_.max_queue;
    const std::unique_ptr<BlockStore> store = options_.serving.store(identity);
    SamplingOptions defaults = sampling_defaults(*loaded.model);
    if (options_.serving.temperature) defaults.temperature = static_cast<float>(*options_.serving.temperature);
    defaults.seed = options_.serving.seed.value_or(0);
    const std::string died = answer(engine, served, {defaults, !options_.serving.seed}, identity, store.get());
    if (store) store->flush();
    if (!died.empty()) fail("the engine has stopped: ", died);
  }

 private:
  // Until somebody asks for an end; why the engine died, if it did.
  std::string answer(Engine& engine, const openai::Served& served, const AnswerDefaults& defaults,
                     const StoreKey& identity, BlockStore* store) {
    std::string why;
    Service::Options options = options_.serving.service_options(identity);
    options.max_waiting = options_.max_queue;
    options.died = [&](const std::string& error) {
      why = error;
      application_.fault(error);
      shutdown_.ask();
    };
    options.scheduler.log = record_.begin(engine, options.scheduler);
    Service service(engine, options, store);
    application_.open(served, service, defaults);
    shutdown_.hold();
    say(concat("serving ", served.name, " at ", url(options_, server_.port())));
    shutdown_.wait();
    end(service);
    return why;
  }

  void end(Service& service) {
    constexpr milliseconds kLastWords{1000};
    application_.drain();
    server_.close_listener();
    const milliseconds patience{static_cast<int64_t>(options_.drain_seconds * 1e3)};
    if (!server_.drain(service.alive() ? patience : kLastWords)) say("some requests are cut short");
    service.stop();  // streams that are left end with an error
    server_.drain(kLastWords);
    server_.stop();
    application_.close();
  }

  const ServeOptions& options_;
  Shutdown& shutdown_;
  Application& application_;
  http::Server& server_;
  Record record_;
};

void serve(const ServeOptions& options) {
  options.serving.engine_options();  // errors of options come before anything is opened
  const ApiKeys keys = options.key_file.empty() ? ApiKeys() : ApiKeys::read(options.key_file);
  if (keys.empty() && !is_loopback(options.host)) {
    say(concat("anyone who reaches ", options.host, " may use this server: --api-key-file asks for keys"));
  }
  Shutdown shutdown;
  Application application({.keys = keys, .cors_origin = options.cors_origin, .aliases = options.aliases, .log = say});
  http::Server server({.host = options.host,
                       .port = options.port,
                       .threads = options.http_threads,
                       .limits = options.limits,
                       .handler =
                           [&](http::Request request, std::shared_ptr<http::Response> response) {
                             application.handle(std::move(request), std::move(response));
                           },
                       .error_body = Application::error_body});
  application.count_connections([&] { return server.counters(); });
  Serving(options, shutdown, application, server).run();
}

}  // namespace

void add_serve(CLI::App& app) {
  CLI::App* command = app.add_subcommand("serve", "answer requests over HTTP, as OpenAI's API has them");
  const auto options = std::make_shared<ServeOptions>();
  options->serving.add_to(*command, ModelOptions::Model::kBuiltinByDefault);
  command->add_option("--host", options->host, "address to listen at")->check(word())->capture_default_str();
  command->add_option("--port", options->port, "0: any that is free")->capture_default_str();
  command->add_option("--alias", options->aliases, "another name that requests may give the model; may be repeated")
      ->check(word())
      ->take_all();
  command->add_option("--api-key-file", options->key_file, "keys that clients must give one of, one a line");
  command->add_option("--cors-origin", options->cors_origin, "pages of this origin may ask; *: of any")->check(word());
  command->add_option("--max-queue", options->max_queue, "requests that may wait beside those that run; 0: any number")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--max-body-bytes", options->limits.body, "of a request")
      ->check(CLI::Range(int64_t{1024}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--max-connections", options->limits.connections, "open at the same time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--drain-seconds", options->drain_seconds, "that running requests may take after SIGTERM")
      ->check(finite())
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->callback([options] { serve(*options); });
}

}  // namespace weir::cli
