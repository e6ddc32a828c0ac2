// Requests through a scheduler, with everything that happened at hand.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "tests/support/fixtures.h"

namespace weir::test {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  RequestEnd end;
  bool ended = false;
};

class Collector final : public RequestSink {
 public:
  void on_token(RequestId id, const SampledToken& token) override {
    answers[id].tokens.push_back(token.id);
    answers[id].logprobs.push_back(token.logprob);
  }
  void on_end(RequestId id, const RequestEnd& end) override {
    EXPECT_FALSE(answers[id].ended) << "request " << id << " ended twice";
    answers[id].ended = true;
    answers[id].end = end;
  }
  std::map<RequestId, Answer> answers;
};

struct ServingOptions {
  int64_t sequences = 8;
  int64_t tokens = 4096;  // of pages
  int64_t anchors = 64;   // for the cache
  int32_t rows = 256;
  int threads = 1;
  SchedulerOptions scheduler;
  BlockStore* store = nullptr;
#ifdef WEIR_TEST_AUTO
  Activations activations = Activations::kAuto;
  StateDtype kv_dtype = kTestGpu < 0 ? StateDtype::kF16 : StateDtype::kBf16;
#else
  Activations activations = Activations::kF32;
  StateDtype kv_dtype = StateDtype::kF32;
#endif
  bool protect_anchors = false;
};

// An engine and a scheduler of its own.
class Serving {
 public:
  Serving(const Model& model, const ServingOptions& options)
      : engine_(model, engine_options(options)),
        scheduler(engine_, options.scheduler, collector, options.store, &trace) {}

  static EngineOptions engine_options(const ServingOptions& options) {
    EngineOptions e = exact_options(options.rows, options.tokens, options.threads);
    e.max_sequences = options.sequences;
    e.max_logit_rows = static_cast<int32_t>(options.sequences);
    e.cached_anchors = options.anchors;
    e.activations = options.activations;
    e.kv_dtype = options.kv_dtype;
    e.protect_anchors = options.protect_anchors;
    return e;
  }

  RequestId submit(Request request) {
    const RequestId id = next_++;
    const std::string why = scheduler.submit(id, std::move(request));
    EXPECT_EQ(why, "");
    return id;
  }
  void run(int64_t most_steps = 100000) {
    while (scheduler.step()) ASSERT_GT(most_steps--, 0) << "does not come to an end";
    EXPECT_TRUE(scheduler.idle());
    scheduler.check_idle();
  }
  const Answer& answer(RequestId id) { return collector.answers[id]; }
  std::vector<int32_t> complete(Request request) {
    const RequestId id = submit(std::move(request));
    run();
    return answer(id).tokens;
  }
  // After clearing the cache every block is free.
  void expect_nothing_held() {
    scheduler.cache().clear();
    EXPECT_EQ(scheduler.cache().node_count(), 0);
    for (int group = 0; group < engine_.pools().groups(); ++group) {
      EXPECT_EQ(engine_.pools().pages(group).held_count(), 0) << "group " << group;
    }
    EXPECT_EQ(engine_.pools().anchors().held_count(), 0);
  }
  Engine& engine() { return engine_; }

 private:
  Engine engine_;
  RequestId next_ = 1;

 public:
  Collector collector;
  TraceRecorder trace;
  Scheduler scheduler;
};

// The same request with an engine of its own, by the plain loop.
inline std::vector<int32_t> alone(const Model& model, const Request& request, const ServingOptions& options = {}) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  EngineOptions e = Serving::engine_options(options);
  e.max_sequences = 1;
  e.max_tokens = prompt + request.max_tokens + 16;
  Engine engine(model, e);
  GenerateOptions g;
  g.max_tokens = request.max_tokens;
  g.sampling = request.sampling;
  g.stop_tokens = std::vector<int64_t>(request.stop_tokens.begin(), request.stop_tokens.end());
  return generate(engine, request.prompt, g).tokens;
}

}  // namespace weir::test
