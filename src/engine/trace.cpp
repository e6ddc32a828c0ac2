#include "engine/trace.h"

#include <algorithm>

namespace weir {

TraceRecorder::TraceRecorder(int64_t capacity)
    : capacity_(capacity), ring_(static_cast<size_t>(capacity)), spans_(static_cast<size_t>(16 * capacity)) {}

TraceStep& TraceRecorder::next() {
  TraceStep& step = ring_[static_cast<size_t>(recorded_++ % capacity_)];
  step.first_span = added_;
  step.spans = 0;
  return step;
}

void TraceRecorder::add_span(const TraceSpan& span) {
  spans_[static_cast<size_t>(added_++) % spans_.size()] = span;
  ++ring_[static_cast<size_t>((recorded_ - 1) % capacity_)].spans;
}

std::string TraceRecorder::dump() const {
  std::string out;
  char line[512];
  for (int64_t i = std::max<int64_t>(0, recorded_ - capacity_); i < recorded_; ++i) {
    const TraceStep& s = ring_[static_cast<size_t>(i % capacity_)];
    std::snprintf(
        line, sizeof(line),
        "{\"step\":%lld,\"model_ms\":%.3f,\"other_ms\":%.3f,\"waiting\":%d,\"running\":%d,\"free_pages\":%lld,"
        "\"free_anchors\":%lld,\"cached_chunks\":%lld,\"restore_points\":%lld,\"hit_tokens\":%lld,"
        "\"evictions\":%lld,\"preemptions\":%lld,\"spans\":[",
        static_cast<long long>(s.step), s.model_ms, s.other_ms, s.waiting, s.running,
        static_cast<long long>(s.free_pages), static_cast<long long>(s.free_anchors),
        static_cast<long long>(s.cached_chunks), static_cast<long long>(s.restore_points),
        static_cast<long long>(s.hit_tokens), static_cast<long long>(s.evictions),
        static_cast<long long>(s.preemptions));
    out += line;
    // Spans that newer steps have overwritten are left out.
    const int64_t oldest = std::max(s.first_span, added_ - static_cast<int64_t>(spans_.size()));
    for (int64_t k = oldest; k < s.first_span + s.spans; ++k) {
      const TraceSpan& span = spans_[static_cast<size_t>(k) % spans_.size()];
      std::snprintf(line, sizeof(line), "%s[%llu,%lld,%d]", k > oldest ? "," : "",
                    static_cast<unsigned long long>(span.request), static_cast<long long>(span.position), span.rows);
      out += line;
    }
    out += "]}\n";
  }
  return out;
}

}  // namespace weir
