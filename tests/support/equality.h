// Requests through a scheduler with every row of logits at hand, against the same requests alone by a plain loop.
#pragma once

#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/serving.h"

namespace weir::test {

// All of what is sampled otherwise: set by `make equality`.
inline bool full_equality() {
  const char* wanted = std::getenv("WEIR_EQUALITY");
  return wanted != nullptr && std::string(wanted) == "full";
}

// Of all that is random in a test, printed so that a failure can be repeated: WEIR_SEED, else a new one for the full
// tests and a fixed one for the others.
inline uint32_t test_seed() {
  static const uint32_t seed = [] {
    const char* given = std::getenv("WEIR_SEED");
    const uint32_t found = given != nullptr  ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10))
                           : full_equality() ? std::random_device{}()
                                             : 20260u;
    std::printf("WEIR_SEED=%u\n", found);
    return found;
  }();
  return seed;
}

inline uint64_t bits_of(std::span<const float> row) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const float value : row) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return hash;
}

inline std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return tokens;
}

// A request alone: tokens, and the bits of the logits of every row that was computed.
struct Reference {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<uint64_t> rows;  // by position, of the prompt and the answer but for its last token
};

// By a plain loop: the prompt in pieces as large as the engine takes, then token by token. No scheduler, no cache.
inline Reference reference(Engine& engine, const Request& request) {
  Sampler sampler(engine.model().spec.vocab);
  TokenHistory history;
  history.add_prompt(request.prompt);
  SamplingOptions sampling = request.sampling;
  sampling.stop_tokens = request.stop_tokens;
  std::vector<int32_t> tokens = request.prompt;
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  Reference found;
  for (;;) {
    size_t last = 0;
    while (static_cast<size_t>(sequence->length()) < tokens.size()) {
      const auto done = static_cast<size_t>(sequence->length());
      const size_t rows = std::min<size_t>(static_cast<size_t>(engine.options().max_batch_rows), tokens.size() - done);
      const SpanRequest span{sequence.get(), std::span(tokens).subspan(done, rows), LogitsWanted::kAll};
      if (engine.step({&span, 1}) != StepStatus::kDone) throw Error("the reference's pools are too small");
      sequence->accept(sequence->length());
      for (size_t r = 0; r < rows; ++r) found.rows.push_back(bits_of(engine.logits(static_cast<int64_t>(r))));
      last = rows - 1;
    }
    const std::optional<SampledToken> token =
        sampler.sample(engine.logits(static_cast<int64_t>(last)), sampling, history,
                       static_cast<int64_t>(tokens.size()), static_cast<int64_t>(found.tokens.size()));
    if (!token) throw Error("the reference met a logit that is not finite");
    if (std::ranges::find(request.stop_tokens, token->id) != request.stop_tokens.end()) return found;
    found.tokens.push_back(token->id);
    found.logprobs.push_back(token->logprob);
    tokens.push_back(token->id);
    history.add(token->id);
    if (static_cast<int64_t>(found.tokens.size()) == request.max_tokens) return found;
  }
}

// An engine for references to prompts of this length and their answers.
inline std::unique_ptr<Engine> reference_engine(const Model& model, int64_t tokens, const ServingOptions& like = {}) {
  EngineOptions options = Serving::engine_options(like);
  options.max_sequences = 1;
  options.cached_anchors = 0;
  options.max_batch_rows = options.max_logit_rows = 256;
  options.max_tokens = tokens;
  return std::make_unique<Engine>(model, options);
}

// A Serving that looks at every row of logits that a step leaves.
class Watched : public Serving {
 public:
  using Serving::Serving;

  struct Difference {
    RequestId request = 0;
    int64_t position = 0;
  };

  RequestId submit(const Request& request, const Reference& expected) {
    const RequestId id = Serving::submit(request);
    expected_[id] = {&expected, static_cast<int64_t>(request.prompt.size())};
    return id;
  }

  bool step(StepObserver* observer = nullptr) {
    const int64_t before = trace.recorded();
    const bool more = scheduler.step(observer);
    if (trace.recorded() == before) return more;
    const TraceStep& record = trace.last();
    for (int64_t i = 0; i < record.spans; ++i) {
      const TraceSpan& span = trace.span(record, i);
      const auto found = expected_.find(span.request);
      if (found == expected_.end()) continue;
      ++rows_compared;
      const auto row = static_cast<size_t>(span.position + span.rows - 1);
      if (span.position < found->second.second) ++prompt_spans[span.request];
      const std::vector<uint64_t>& rows = found->second.first->rows;
      if (row >= rows.size() || rows[row] != bits_of(engine().logits(i))) {
        differences.push_back({span.request, static_cast<int64_t>(row)});
      }
    }
    return more;
  }

  // To the end, preempting now and then.
  void run_watched(std::mt19937* preempt = nullptr) {
    for (int64_t steps = 0; step(); ++steps) {
      ASSERT_LT(steps, 100000) << "does not come to an end";
      if (preempt != nullptr && (steps == 1 || (*preempt)() % 4 == 0)) scheduler.preempt_youngest();
    }
    ASSERT_TRUE(scheduler.idle());
    scheduler.check_idle();
  }

  // Tokens, logprobs and all rows of logits of a request that has ended.
  void expect_reference(RequestId id) {
    const Reference& expected = *expected_.at(id).first;
    EXPECT_TRUE(answer(id).ended) << id;
    EXPECT_NE(answer(id).end.reason, FinishReason::kError) << answer(id).end.error;
    EXPECT_EQ(answer(id).tokens, expected.tokens) << "request " << id;
    EXPECT_TRUE(same_bits(answer(id).logprobs, expected.logprobs)) << "request " << id;
  }
  void expect_all_references() {
    for (const auto& [id, expected] : expected_) expect_reference(id);
    expect_no_difference();
  }
  void expect_no_difference() {
    if (differences.empty()) return;
    ADD_FAILURE() << differences.size() << " of " << rows_compared << " rows of logits have other bits, first request "
                  << differences[0].request << " at position " << differences[0].position;
  }

  std::vector<Difference> differences;
  std::map<RequestId, int64_t> prompt_spans;  // steps that computed rows of its prompt
  int64_t rows_compared = 0;

 private:
  std::map<RequestId, std::pair<const Reference*, int64_t>> expected_;  // and the prompt's length
};

// Gives back all that the cache holds and nobody uses, to the store where there is one.
inline void evict_everything(Serving& serving) {
  StatePools& pools = serving.engine().pools();
  for (int group = 0; group < pools.groups(); ++group) {
    if (!pools.kept_forever(group)) continue;
    while (serving.scheduler.cache().evict_page(group)) {}
  }
  EXPECT_EQ(serving.scheduler.cache().node_count(), 0);
}

// Letters, digits and underscores only.
inline std::string test_name(std::string text) {
  for (char& c : text) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return text;
}

// SmolLM2-135M-Instruct, where tools/fetch_smollm2.sh put it; empty when it is not there.
inline std::string smollm2_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string folder = cache != nullptr ? cache : home != nullptr ? std::string(home) + "/.cache" : "";
  const std::string path = folder + "/weir/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace weir::test
