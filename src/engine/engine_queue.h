// The engine as a server sees it: a queue that takes requests in and tells what the engine does. Service is the real
// one; tests put answers of their own behind the same queue.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/histogram.h"
#include "engine/scheduler.h"

namespace weir {

// What receives a request's tokens. Called by the engine's thread: must not block, nor throw.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual void on_token(const SampledToken& token) = 0;
  virtual void on_end(const RequestEnd& end) = 0;  // once, the last call
};

// Why a request was not taken in.
struct SubmitRefusal {
  enum class Kind {
    kNeverFits,  // whatever runs: a value out of range, too many tokens
    kQueueFull,  // for now
    kStopping,
    kDead,  // the engine has ended by an error
  };
  Kind kind = Kind::kNeverFits;
  std::string why;
};

struct EngineSnapshot {
  Scheduler::Counters scheduler;
  PrefixCache::Counters cache;
  BlockStore::Counters store;
  int64_t waiting = 0, running = 0, cached_chunks = 0, restore_points = 0;
  std::vector<int64_t> pages, free_pages, page_bytes;  // by group; bytes of one page
  int64_t anchors = 0, free_anchors = 0, anchor_bytes = 0;
  Histogram step_seconds{kStepBounds};

  static constexpr double kStepBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10};
};

// What one step did.
struct StepRecord {
  int64_t step = 0;  // from 0
  double model_ms = 0, other_ms = 0;
  int32_t running = 0, waiting = 0;
  std::vector<TraceSpan> spans;
};

// All functions may be called from any thread; none waits for a step.
class EngineQueue {
 public:
  virtual ~EngineQueue() = default;

  // Nothing, and the stream will be called; or why not, and it will not.
  virtual std::optional<SubmitRefusal> submit(Request request, std::shared_ptr<TokenStream> stream, RequestId& id) = 0;
  // The stream's on_end follows (kCancelled), unless it has come already.
  virtual void cancel(RequestId id) = 0;

  virtual bool alive() const = 0;
  virtual EngineSnapshot snapshot() const = 0;  // of the end of the last step
  // The newest steps after step `since` (-1: all), oldest first, at most `most` and at most kRecentSteps.
  virtual std::vector<StepRecord> steps_since(int64_t since, int64_t most) const = 0;

  static constexpr int64_t kRecentSteps = 256;
};

}  // namespace weir
