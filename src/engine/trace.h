// A record of what a scheduler did, step by step, compact enough to be always on: a ring of the last steps, written as
// JSON lines on demand; and a full log of requests and steps from which a run can be repeated.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

struct TraceSpan {
  uint64_t request = 0;
  int64_t position = 0;
  int32_t rows = 0;
};

struct TraceStep {
  int64_t step = 0;
  double model_ms = 0, other_ms = 0;
  int32_t waiting = 0, running = 0;
  int64_t free_pages = 0, free_anchors = 0, cached_chunks = 0, restore_points = 0;
  int64_t hit_tokens = 0, evictions = 0, preemptions = 0;  // since the start
  std::vector<TraceSpan> spans;
};

class TraceRecorder {
 public:
  explicit TraceRecorder(int64_t capacity = 4096);

  // The record to fill for this step: the oldest one's memory, so that nothing is allocated once all are in use.
  TraceStep& next();
  // Oldest first, a JSON object a line.
  std::string dump() const;
  int64_t recorded() const { return recorded_; }
  const TraceStep& last() const { return ring_[static_cast<size_t>((recorded_ - 1) % capacity_)]; }

 private:
  int64_t capacity_;
  int64_t recorded_ = 0;
  std::vector<TraceStep> ring_;
};

}  // namespace weir
