// What the serving core costs and saves on a model.
//   serving_bench MODEL [threads]
// Second turn of a 6,000-token conversation; prompts that share 1,000 of 2,000 tokens with an earlier one; throughput
// with and without the cache when nothing is shared, in turns; the scheduler's own time a step.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "base/error.h"
#include "device/thread_pool.h"
#include "engine/scheduler.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Sink final : public RequestSink {
 public:
  void on_token(RequestId id, const SampledToken& token) override { tokens[id].push_back(token.id); }
  void on_end(RequestId id, const RequestEnd& end) override {
    if (end.reason == FinishReason::kError)
      std::printf("request %llu: %s\n", (unsigned long long)id, end.error.c_str());
    ends[id] = end;
  }
  std::map<RequestId, std::vector<int32_t>> tokens;
  std::map<RequestId, RequestEnd> ends;
};

class Bench {
 public:
  Bench(const Model& model, int threads, int64_t tokens, int64_t sequences, bool cache)
      : engine_(model, options(threads, tokens, sequences)),
        scheduler_(engine_, {.cache = {.enabled = cache}}, sink_) {}

  static EngineOptions options(int threads, int64_t tokens, int64_t sequences) {
    EngineOptions o;
    o.threads = threads;
    o.kernels = best_kernel_set();
    o.activations = Activations::kAuto;
    o.max_sequences = sequences;
    o.max_logit_rows = static_cast<int32_t>(std::max<int64_t>(64, sequences));
    o.max_tokens = tokens;
    o.cached_anchors = 256;
    return o;
  }
  std::vector<int32_t> random_tokens(int64_t n, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& t : tokens) t = static_cast<int32_t>(random() % static_cast<uint32_t>(engine_.model().spec.vocab));
    return tokens;
  }
  RequestId submit(std::vector<int32_t> prompt, int64_t max_tokens) {
    const RequestId id = next_++;
    const std::string why = scheduler_.submit(id, {.prompt = std::move(prompt), .max_tokens = max_tokens});
    if (!why.empty()) fail(why);
    return id;
  }
  double run() {
    const auto start = Clock::now();
    while (scheduler_.step()) {}
    return seconds_since(start);
  }
  // Seconds to the end of the prompt of one request.
  double prompt(std::vector<int32_t> tokens, int64_t max_tokens, RequestId& id) {
    id = submit(std::move(tokens), max_tokens);
    run();
    return sink_.ends[id].usage.prompt_ms / 1000;
  }
  const RequestUsage& usage(RequestId id) { return sink_.ends[id].usage; }
  const std::vector<int32_t>& answer(RequestId id) { return sink_.tokens[id]; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  Engine engine_;
  Sink sink_;
  Scheduler scheduler_;
  RequestId next_ = 1;
};

void second_turn(const Model& model, int threads) {
  Bench bench(model, threads, 16384, 4, true);
  std::vector<int32_t> talk = bench.random_tokens(6000, 1);
  RequestId id;
  const double first = bench.prompt(talk, 32, id);
  talk.insert(talk.end(), bench.answer(id).begin(), bench.answer(id).end());
  const std::vector<int32_t> user = bench.random_tokens(40, 2);
  talk.insert(talk.end(), user.begin(), user.end());
  const double second = bench.prompt(talk, 32, id);
  std::printf("second turn of 6,000 tokens: first %.3f s, second %.4f s (%.2f %%), %lld of %lld tokens cached\n", first,
              second, 100 * second / first, static_cast<long long>(bench.usage(id).cached_tokens),
              static_cast<long long>(bench.usage(id).prompt_tokens));
}

void partial(const Model& model, int threads) {
  Bench bench(model, threads, 16384, 4, true);
  const std::vector<int32_t> whole = bench.random_tokens(2000, 3);
  RequestId id;
  const double cold = bench.prompt(whole, 4, id);
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t> other(whole.begin(), whole.begin() + 1000);
    const std::vector<int32_t> own = bench.random_tokens(1000, static_cast<uint32_t>(10 + i));
    other.insert(other.end(), own.begin(), own.end());
    const double time = bench.prompt(other, 4, id);
    std::printf("1,000 of 2,000 tokens shared, %s request: %.3f s of %.3f s cold (%.1f %%), %lld cached, %s\n",
                i == 0   ? "first"
                : i == 1 ? "second"
                         : "third",
                time, cold, 100 * time / cold, static_cast<long long>(bench.usage(id).cached_tokens),
                hit_reason_name(bench.usage(id).hit).data());
  }
}

void cost_of_cache(const Model& model, int threads) {
  double best[2] = {1e9, 1e9}, sum[2] = {0, 0};
  int64_t hits = 0;
  constexpr int kPairs = 5;
  for (int i = 0; i < 2 * kPairs; ++i) {
    const bool cache = (i + i / 2) % 2 == 0;  // in turns, either first
    Bench bench(model, threads, 8192, 8, cache);
    for (int r = 0; r < 8; ++r) bench.submit(bench.random_tokens(200, static_cast<uint32_t>(100 * i + r)), 64);
    const double time = bench.run();
    best[cache] = std::min(best[cache], time);
    sum[cache] += time;
    hits += bench.scheduler().cache().counters().hit_tokens;
  }
  std::printf(
      "nothing shared, 8 requests of 200 + 64 tokens: with cache %.3f s, without %.3f s (best %.3f, %.3f): "
      "%+.2f %% (best %+.2f %%); %lld tokens hit\n",
      sum[1] / kPairs, sum[0] / kPairs, best[1], best[0], 100 * (sum[1] / sum[0] - 1), 100 * (best[1] / best[0] - 1),
      static_cast<long long>(hits));
}

void overhead(const Model& model, int threads) {
  Bench bench(model, threads, 64 * 256, 64, true);
  for (int r = 0; r < 64; ++r) bench.submit(bench.random_tokens(8 + r, static_cast<uint32_t>(r)), 128);
  while (bench.scheduler().counters().prompt_rows < 64 * 8 + 63 * 32) bench.scheduler().step();
  const Scheduler::Counters before = bench.scheduler().counters();
  for (int i = 0; i < 64; ++i) bench.scheduler().step();
  const Scheduler::Counters after = bench.scheduler().counters();
  const double steps = static_cast<double>(after.steps - before.steps);
  std::printf(
      "64 decoding sequences: %.1f us a step for scheduling, %.1f for sampling; %.3f ms in the model; %.1f rows a "
      "step\n",
      1000 * (after.other_ms - before.other_ms) / steps, 1000 * (after.sampling_ms - before.sampling_ms) / steps,
      (after.model_ms - before.model_ms) / steps, static_cast<double>(after.rows - before.rows) / steps);
}

// Time between tokens of running requests while long prompts arrive.
void latency(const Model& model, int threads) {
  Bench bench(model, threads, 32768, 16, true);
  for (int r = 0; r < 8; ++r) bench.submit(bench.random_tokens(32, static_cast<uint32_t>(r)), 400);
  while (bench.scheduler().counters().decode_rows < 8 * 20) bench.scheduler().step();
  std::vector<double> quiet, busy;
  uint32_t seed = 100;
  while (bench.scheduler().counters().decode_rows < 8 * 300) {
    // A new prompt of 2,000 tokens as soon as the last one is done.
    const bool prompt = bench.scheduler().counters().decode_rows > 8 * 60;
    if (prompt && bench.scheduler().running() + bench.scheduler().waiting() <= 8) {
      bench.submit(bench.random_tokens(2000, ++seed), 1);
    }
    const auto start = Clock::now();
    bench.scheduler().step();
    (prompt ? busy : quiet).push_back(seconds_since(start) * 1000);
  }
  for (std::vector<double>* times : {&quiet, &busy}) {
    std::ranges::sort(*times);
    const auto at = [&](double q) { return (*times)[static_cast<size_t>(q * static_cast<double>(times->size() - 1))]; };
    std::printf("8 decoding%s: %.1f ms between tokens at the median, %.1f at p99, %.1f at most (target 100 ms)\n",
                times == &quiet ? "" : ", prompts of 2,000 tokens arriving", at(0.5), at(0.99), at(1));
  }
}

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: serving_bench MODEL [threads]\n");
    return 2;
  }
  const int threads = argc > 2 ? std::atoi(argv[2]) : default_threads();
  if (threads < 1) fail("threads: expected a number from 1, found ", printable(argv[2]));
  const std::unique_ptr<Model> model = Model::load(argv[1]);
  std::printf("%s, %d threads, %s kernels\n", model->spec.family.c_str(), threads,
              kernel_set_name(best_kernel_set()).data());
  second_turn(*model, threads);
  partial(*model, threads);
  cost_of_cache(*model, threads);
  overhead(*model, threads);
  latency(*model, threads);
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  try {
    return weir::main(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "serving_bench: %s\n", e.what());
    return 1;
  }
}
