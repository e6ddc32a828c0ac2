// weir load: how a server of the OpenAI API does under load.
#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/load_report.h"
#include "cli/load_setup.h"
#include "cli/terminal.h"

namespace weir::cli {
namespace {

constexpr uint64_t kWarmupSeed = 0x5745495200000000;  // apart from what is measured: the cache must not know it

struct LoadOptions {
  std::string url, model, endpoint = "completions", prompts = "random:512,128", goodput, key_variable, output = "table";
  int64_t concurrency = 1, requests = 0, max_tokens = 128, warmup = 0;
  double rate = 0, seconds = 0, temperature = 0, timeout = 600;
  uint64_t seed = 0;
  bool stop_at_eos = false;
};

std::string api_key(const std::string& variable) {
  if (variable.empty()) return "";
  const char* value = std::getenv(variable.c_str());
  if (value == nullptr || *value == '\0')
    fail("--api-key-env: expected a key in ", printable(variable), ", found nothing");
  const std::string key = value;
  if (std::ranges::any_of(key, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; })) {
    fail("--api-key-env: expected a key of one line in ", printable(variable));
  }
  return key;
}

// On a terminal only, and gone when the figures come.
LoadClient::Progress progress_of(int64_t requests) {
  if (!is_terminal(STDERR_FILENO)) return {};
  return [requests](const LoadTally& tally, int64_t in_flight, double seconds) {
    std::fprintf(stderr, "\r%s\x1b[K", load_state_line(tally, in_flight, requests, seconds).c_str());
    std::fflush(stderr);
  };
}

void print_report(const boost::json::object& report, const std::string& output) {
  const std::string text = output == "json"  ? boost::json::serialize(report) + "\n"
                           : output == "csv" ? load_csv(report)
                                             : load_table(report);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// What must be true of a warm-up, or else what follows is not worth its time.
void warm_up(LoadClient& client, const LoadSettings& settings, const PromptSource& prompts) {
  const LoadSchedule schedule{.concurrency = settings.schedule.rate > 0 ? 1 : settings.schedule.concurrency,
                              .requests = settings.warmup};
  const LoadRun run = client.run(schedule, prompts, settings.request, {}, {});
  if (run.interrupted) fail("interrupted in the warm-up");
  if (run.tally.failed > 0) {
    fail("warm-up: ", run.tally.failed, " of ", settings.warmup,
         " requests failed; the first one: ", run.tally.first_failure);
  }
}

void load(LoadOptions options) {
  if (options.requests == 0 && options.seconds == 0) options.requests = 100;
  LoadClient::Options connection{parse_load_url(options.url), api_key(options.key_variable), options.timeout};
  const PromptSpec spec = parse_prompts(options.prompts);
  const GoodputLimits limits = parse_goodput(options.goodput);

  LoadSettings settings;
  settings.url = connection.url.text();
  LoadClient client(std::move(connection));
  settings.schedule = {options.rate, options.concurrency, options.requests, options.seconds, options.seed};
  settings.request = {.model = options.model.empty() ? served_model(client, settings.url) : options.model,
                      .chat = options.endpoint == "chat",
                      .temperature = options.temperature,
                      .ignore_eos = !options.stop_at_eos,
                      .seed = options.seed};
  settings.prompts = options.prompts;
  settings.goodput = options.goodput;
  settings.max_tokens = spec.max_tokens.value_or(options.max_tokens);
  settings.warmup = options.warmup;

  const bool random = spec.kind != PromptSpec::Kind::kFile;
  const WordList words = random ? sized_words(client, settings.request) : WordList();
  const auto prompts = [&](uint64_t seed) {
    return make_prompts(spec, words, options.requests, options.max_tokens, seed);
  };
  if (options.warmup > 0) warm_up(client, settings, *prompts(options.seed ^ kWarmupSeed));
  const LoadRun run =
      client.run(settings.schedule, *prompts(options.seed), settings.request, limits, progress_of(options.requests));
  if (is_terminal(STDERR_FILENO)) std::fprintf(stderr, "\r\x1b[K");
  print_report(load_report(settings, run), options.output);
  if (run.tally.failed > 0) {
    fail(run.tally.failed, " of ", run.tally.failed + run.tally.completed,
         " requests failed; the first one: ", run.tally.first_failure);
  }
  if (run.interrupted) fail("interrupted");
}

constexpr const char* kFooter =
    "Prompts are random words of a seed, IN tokens long (512 where left out):\n"
    "  random:IN[,OUT]            nothing shared (the control of a prefix cache)\n"
    "  repeat:K[,IN[,OUT]]        each prompt K times\n"
    "  shared:PREFIX,TAIL[,OUT]   all begin with the same PREFIX tokens\n"
    "  partial:PART,IN[,K[,OUT]]  K of them (2) begin with the same PART of IN tokens\n"
    "  turns:N[,IN[,OUT]]         conversations of N turns, IN new tokens each\n"
    "or conversations of FILE.jsonl: lines with \"messages\", \"conversations\" (ShareGPT) or \"prompt\".\n\n"
    "Counted as vLLM's benchmark does: tokens are those of the server's usage; TTFT ends with the first chunk that\n"
    "has text; ITL is the time between two chunks with text, however many tokens they hold; TPOT is the time after\n"
    "the first chunk, divided by the tokens after the first. Compare TPOT only beside the throughput.";

}  // namespace

void add_load(CLI::App& app) {
  CLI::App* command = app.add_subcommand("load", "latency and throughput of a server of the OpenAI API under load");
  const auto o = std::make_shared<LoadOptions>();
  constexpr int64_t kMost = int64_t{1} << 40;
  command->add_option("URL", o->url, "http://HOST[:PORT][/PATH]; https is not supported")->required();
  command->add_option("--prompts", o->prompts, "what is asked, see below")->capture_default_str();
  command->add_option("--output-tokens", o->max_tokens, "generated, where the prompts don't say (OUT)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  auto* closed = command->add_option("-c,--concurrency", o->concurrency, "closed load: requests at any time")
                     ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
                     ->capture_default_str();
  command->add_option("--rate", o->rate, "open load: arrivals per second, a Poisson process")
      ->check(CLI::Range(1e-6, 1e6))
      ->excludes(closed);
  command->add_option("-n,--requests", o->requests, "to send (100, where --duration does not end it)")
      ->check(CLI::Range(int64_t{1}, kMost));
  command->add_option("--duration", o->seconds, "seconds after which no more are sent; those in flight are finished")
      ->check(CLI::Range(1e-3, 1e9));
  command->add_option("--warmup", o->warmup, "requests before, of other prompts, that don't count")
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str();
  command->add_option("--goodput", o->goodput, "limits of a good request, in ms: ttft:MS,tpot:MS,e2e:MS");
  command->add_option("--endpoint", o->endpoint, "chat or completions")
      ->check(CLI::IsMember({"chat", "completions"}))
      ->capture_default_str();
  command->add_option("--model", o->model, "default: the first of /v1/models");
  command->add_option("--temperature", o->temperature, "0: greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_flag("--stop-at-eos", o->stop_at_eos, "let answers end by themselves (else ignore_eos is sent)");
  command->add_option("--seed", o->seed, "of prompts, arrivals and sampling")->capture_default_str();
  command->add_option("--timeout", o->timeout, "seconds for a request")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  command->add_option("--api-key-env", o->key_variable, "environment variable that holds the key");
  command->add_option("--output", o->output, "table, json or csv")
      ->check(CLI::IsMember({"table", "json", "csv"}))
      ->capture_default_str();
  command->footer(kFooter);
  command->callback([o] { load(*o); });
}

}  // namespace weir::cli
