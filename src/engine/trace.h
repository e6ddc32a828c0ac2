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
  int64_t first_span = 0, spans = 0;                       // in the recorder's ring of spans
};

class TraceRecorder {
 public:
  // The last `capacity` steps, and their last 16 x capacity spans. Everything is allocated here.
  explicit TraceRecorder(int64_t capacity = 4096);

  TraceStep& next();                     // the record of this step, to be filled
  void add_span(const TraceSpan& span);  // of this step
  // Oldest first, a JSON object a line.
  std::string dump() const;
  int64_t recorded() const { return recorded_; }
  const TraceStep& last() const { return ring_[static_cast<size_t>((recorded_ - 1) % capacity_)]; }
  // Span `i` of a step that is recent enough.
  const TraceSpan& span(const TraceStep& step, int64_t i) const {
    return spans_[static_cast<size_t>(step.first_span + i) % spans_.size()];
  }

 private:
  int64_t capacity_;
  int64_t recorded_ = 0;
  std::vector<TraceStep> ring_;
  std::vector<TraceSpan> spans_;
  int64_t added_ = 0;
};

}  // namespace weir
