// What a scheduler was asked, and between which steps: all from which its run can be repeated, step by step the same.
// A JSON object a line:
//   {"engine": {..}} first   {"submit": id, "prompt": [..], "max_tokens": n, ...}   {"cancel": id}   {"preempt": true}
//   {"step": prompt rows}
// Prompts are in it, so it is written only where it was asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/request.h"

namespace weir {

class Scheduler;
struct EngineOptions;

// What of an engine decides over its schedule.
struct RecordedEngine {
  int32_t max_batch_rows = 0;
  int64_t max_sequences = 0, max_tokens = 0, cached_anchors = 0;
  bool prefix_cache = true;

  // `cached_anchors`: what the pool has beyond those of live sequences.
  static RecordedEngine of(const EngineOptions& options, int64_t cached_anchors, bool prefix_cache);
  // From the first line of a log. Error naming `file` when that is something else.
  static RecordedEngine of(std::string_view log, const std::string& file);
  void apply(EngineOptions& options) const;
};

class ScheduleLog {
 public:
  // `write` gets whole lines, on the scheduler's thread.
  explicit ScheduleLog(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

  void began(const RecordedEngine& engine);
  void submitted(RequestId id, const Request& request);
  void cancelled(RequestId id);
  void preempted();
  void stepped(int32_t prompt_rows);  // that the step had time for

 private:
  void write(const std::string& line) { write_(line); }
  std::function<void(std::string_view)> write_;
};

// Does the same with another scheduler, which must be new: its engine of the same model and options, the same cache
// options. Steps then have the same spans; where blocks come from a store, only tokens and hits are the same. Error
// naming `file` and the line: not a log, a request with a token mask, one that this engine refuses. Returns the steps.
int64_t replay(std::string_view log, const std::string& file, Scheduler& scheduler);

}  // namespace weir
