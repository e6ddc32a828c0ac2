#include "engine/trace.h"

#include <algorithm>

namespace weir {

TraceRecorder::TraceRecorder(int64_t capacity) : capacity_(capacity), ring_(static_cast<size_t>(capacity)) {
  for (TraceStep& step : ring_) step.spans.reserve(16);
}

TraceStep& TraceRecorder::next() {
  TraceStep& step = ring_[static_cast<size_t>(recorded_++ % capacity_)];
  step.spans.clear();
  return step;
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
    for (size_t k = 0; k < s.spans.size(); ++k) {
      std::snprintf(line, sizeof(line), "%s[%llu,%lld,%d]", k > 0 ? "," : "",
                    static_cast<unsigned long long>(s.spans[k].request), static_cast<long long>(s.spans[k].position),
                    s.spans[k].rows);
      out += line;
    }
    out += "]}\n";
  }
  return out;
}

}  // namespace weir
