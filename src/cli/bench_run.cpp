#include "cli/bench_run.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "engine/generate.h"

namespace weir::cli {
namespace {

using Clock = std::chrono::steady_clock;

void must_step(Engine& engine, std::span<const SpanRequest> spans) {
  require_done(engine, engine.step(spans));
  for (const SpanRequest& span : spans) span.sequence->accept(span.sequence->length());
}

double flops_of(const Circuit& circuit, int32_t rows, int64_t last_position) {
  Cost cost;
  for (size_t i = 0; i < circuit.size(); ++i) cost += circuit.op(i).cost(rows, last_position);
  return cost.flops;
}

class Bench {
 public:
  Bench(Engine& engine, const BenchTest& test) : engine_(engine), test_(test) {
    for (int64_t i = 0; i < test.batch; ++i) {
      lives_.push_back({engine.new_sequence(), bench_tokens(i, test.depth + test.n, engine.model().spec.vocab)});
    }
  }

  // Every sequence at the depth, whatever came before.
  void rewind() {
    for (const Life& life : lives_) {
      life.sequence->rollback(test_.depth);
      fill(life, test_.depth, LogitsWanted::kNone);
    }
  }

  double run() {
    flops_ = 0;
    const Clock::time_point start = Clock::now();
    if (test_.kind == BenchTest::Kind::kPrompt) {
      fill(lives_.front(), test_.depth + test_.n, LogitsWanted::kLast);
    } else {
      for (int64_t i = 0; i < test_.n; ++i) generate_one(test_.depth + i);
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  double flops() const { return flops_; }

 private:
  struct Life {
    std::unique_ptr<Sequence> sequence;
    std::vector<int32_t> tokens;  // all that it is given
  };

  void fill(const Life& life, int64_t length, LogitsWanted logits) {
    Sequence& sequence = *life.sequence;
    while (sequence.length() < length) {
      const int64_t left = length - sequence.length();
      const int64_t rows = prompt_chunk(sequence.length(), left, engine_.options().max_batch_rows);
      const SpanRequest request{
          &sequence, std::span(life.tokens).subspan(static_cast<size_t>(sequence.length()), static_cast<size_t>(rows)),
          rows == left ? logits : LogitsWanted::kNone};
      must_step(engine_, {&request, 1});
      flops_ += flops_of(engine_.circuit(), static_cast<int32_t>(rows), sequence.length() - 1);
    }
  }

  void generate_one(int64_t position) {
    requests_.clear();
    for (const Life& life : lives_) {
      requests_.push_back({life.sequence.get(), {&life.tokens[static_cast<size_t>(position)], 1}, LogitsWanted::kLast});
    }
    must_step(engine_, requests_);
    flops_ += flops_of(engine_.circuit(), 1, position) * static_cast<double>(test_.batch);
  }

  Engine& engine_;
  BenchTest test_;
  std::vector<Life> lives_;
  std::vector<SpanRequest> requests_;
  double flops_ = 0;
};

int64_t bytes_moved(const StepCounters& counters) {
  return counters.weight_bytes_read + counters.state_bytes_read + counters.state_bytes_written;
}

}  // namespace

std::vector<int32_t> bench_tokens(int64_t sequence, int64_t count, int64_t vocab) {
  uint64_t state = 88172645463325252u + static_cast<uint64_t>(sequence) * 0x9e3779b97f4a7c15u;
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    tokens.push_back(static_cast<int32_t>(state % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

std::string BenchTest::name() const {
  std::string out = concat(kind == Kind::kPrompt ? "pp" : "tg", n);
  if (depth > 0) out += concat("@d", depth);
  if (batch > 1) out += concat("@b", batch);
  return out;
}

void size_bench_engine(const std::vector<BenchTest>& tests, const ModelSpec& spec, EngineOptions& options) {
  options.max_sequences = 1;
  options.max_tokens = 0;
  for (const BenchTest& test : tests) {
    if (test.depth + test.n > spec.max_positions) {
      fail(test.name(), ": expected at most ", spec.max_positions, " tokens, the model's context, found ",
           test.depth + test.n);
    }
    options.max_sequences = std::max(options.max_sequences, test.batch);
    options.max_tokens = std::max(options.max_tokens, test.batch * (test.depth + test.n));
  }
  options.max_batch_rows = static_cast<int32_t>(
      std::max<int64_t>(std::min<int64_t>(options.max_batch_rows, options.max_tokens), options.max_sequences));
  options.max_logit_rows = static_cast<int32_t>(options.max_sequences);
}

BenchResult run_bench(Engine& engine, const BenchTest& test, int repeats) {
  BenchResult result;
  Bench bench(engine, test);
  // Once for nothing: weights come into memory, threads awake.
  for (int i = -1; i < repeats; ++i) {
    bench.rewind();
    const int64_t before = bytes_moved(engine.device().counters());
    const double seconds = bench.run();
    if (i < 0) continue;
    result.seconds.push_back(seconds);
    result.bytes = bytes_moved(engine.device().counters()) - before;
    result.flops = bench.flops();
  }
  return result;
}

}  // namespace weir::cli
