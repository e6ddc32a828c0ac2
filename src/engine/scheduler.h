// Continuous batching: which rows of which requests the next step computes (docs/architecture.md 3).
//
// A step takes one row of every request that is decoding, then chunks of prompts as far as the step-time target allows.
// A request waits until its prompt fits beside what runs; it is refused only when its worst case never could. When
// blocks run short, cached ones are evicted, then the youngest request is preempted: it gives its blocks to the cache
// and waits again. Requests whose prompts share a beginning that one of them is computing wait for it. None of this
// changes a token: rows are a pure function of their prefix, and noise is keyed by position.
//
// Single-threaded: whoever calls step() owns the engine. Nothing depends on the clock but the sizes of prompt chunks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "engine/sampler_cuda.h"
#include "engine/schedule_log.h"
#include "engine/trace.h"
#include "state/prefix_cache.h"

namespace weir {

struct SchedulerOptions {
  double target_step_ms = 100;  // of steps while requests are decoding
  int32_t chunk_rows = 0;       // rows of prompts in a step, whatever the time (tests, replay); 0: by the target
  CacheOptions cache;
  ScheduleLog* log = nullptr;  // gets what replay() needs; may be null
};

// Time of a step by its rows, learnt from steps.
class StepClock {
 public:
  void measured(double ms, int32_t decode_rows, int32_t prompt_rows);
  // Prompt rows that a step with these decode rows has time for.
  int32_t prompt_rows(double target_ms, int32_t decode_rows, int32_t most) const;

 private:
  double decode_ms_ = 0;   // of a step without prompt rows
  double per_row_ms_ = 0;  // each prompt row more
};

class Scheduler {
 public:
  struct Counters {
    int64_t steps = 0, rows = 0, decode_rows = 0, prompt_rows = 0;
    int64_t submitted = 0, refused = 0, finished = 0, cancelled = 0, failed = 0;
    int64_t preemptions = 0, waits_for_prefix = 0;
    int64_t most_rows_of_a_step = 0, most_sequences_of_a_step = 0;
    double model_ms = 0, sampling_ms = 0;  // in the engine's step; in choosing tokens
    double other_ms = 0;                   // in everything else
  };

  // `store` and `trace` may be null. All must outlive the scheduler.
  Scheduler(Engine& engine, const SchedulerOptions& options, RequestSink& sink, BlockStore* store = nullptr,
            TraceRecorder* trace = nullptr);
  ~Scheduler();

  // Empty, or why it can never be served, with numbers. Depends on what does not change: any thread may ask.
  std::string refusal(const Request& request) const;
  // The same, and takes it in. Ids must be new.
  std::string submit(RequestId id, Request request);
  // Ends it without a further token; false when there is no such request.
  bool cancel(RequestId id);
  // One step; false when there was nothing to do.
  bool step(StepObserver* observer = nullptr);
  bool step_with(int32_t prompt_rows, StepObserver* observer = nullptr);  // whatever time they take (replay)
  bool idle() const { return waiting_.empty() && running_.empty(); }
  void preempt_youngest();  // tests

  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  PrefixCache& cache() { return cache_; }
  const Counters& counters() const { return counters_; }
  // With nothing running: every block is free or in the cache. Error otherwise.
  void check_idle() const;

 private:
  struct Live;  // a request that waits or runs
  using Clock = std::chrono::steady_clock;

  void admit();
  bool fits(const Live& live, const PrefixCache::Hit& hit) const;
  bool waits_for_another(Live& live, const PrefixCache::Hit& hit);
  bool goes_first(const Live& a, const Live& b) const;
  void start(Live& live, const PrefixCache::Hit& found);
  int32_t prompt_budget(int32_t decode_rows, int32_t room) const;
  void plan();
  void add_span(Live& live, int32_t rows);
  bool run_step(StepObserver* observer);
  bool make_room();
  Live* youngest();
  void preempt(Live& live);
  void sample_all();
  void sample_on_gpu();
  void after_step();
  void remember(Live& live, int64_t before, bool prompt_end);
  void sampled(Live& live, const SampledToken& token);
  void end(Live& live, RequestEnd result);
  void keep_newest(Live& live, RestoreKind kind);  // its deepest restore point, for others and for itself
  void give_back(Live& live);                      // all blocks
  void record_step(double model_ms, double other_ms);
  void sweep();
  double turn(uint64_t client);

  Engine& engine_;
  SchedulerOptions options_;
  RequestSink& sink_;
  BlockStore* store_;
  TraceRecorder* trace_;
  PrefixCache cache_;
  std::vector<Sampler> samplers_;  // one per thread; none where a GPU samples
  std::unique_ptr<CudaSampler> gpu_sampler_;
  std::vector<SampleRow> sample_rows_;
  std::vector<std::optional<SampledToken>> sampled_;  // by planned span; of chunks within a prompt: whether finite
  StepClock clock_;
  std::optional<int32_t> replayed_rows_;                  // of prompts, in this step
  std::vector<std::unique_ptr<Live>> waiting_, running_;  // running: in the order of arrival
  std::map<uint64_t, double> turns_;                      // rows given to each client with live requests
  struct Planned {
    Live* live = nullptr;
    int64_t position = 0;
    int32_t rows = 0;
    bool decode = false;
  };
  std::vector<Planned> planned_;
  std::vector<SpanRequest> spans_;
  std::vector<Live*> order_;
  RestorePoint captured_;
  uint64_t arrivals_ = 0;
  Counters counters_;
};

}  // namespace weir
