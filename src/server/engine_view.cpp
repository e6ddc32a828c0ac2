#include "server/engine_view.h"

#include <boost/json/array.hpp>
#include <cmath>
#include <string_view>

namespace weir {
namespace {

namespace json = boost::json;

double rounded(double ms) { return std::round(ms * 1e3) / 1e3; }

json::object step_object(const StepRecord& step) {
  json::array spans;
  for (const TraceSpan& span : step.spans) spans.push_back(json::array{span.request, span.position, span.rows});
  return {{"step", step.step},
          {"model_ms", rounded(step.model_ms)},
          {"other_ms", rounded(step.other_ms)},
          {"running", step.running},
          {"waiting", step.waiting},
          {"spans", std::move(spans)}};
}

json::object counters_object(const Scheduler::Counters& c) {
  return {{"steps", c.steps},
          {"rows", c.rows},
          {"decode_rows", c.decode_rows},
          {"prompt_rows", c.prompt_rows},
          {"submitted", c.submitted},
          {"refused", c.refused},
          {"finished", c.finished},
          {"cancelled", c.cancelled},
          {"failed", c.failed},
          {"preemptions", c.preemptions}};
}

json::object cache_object(const PrefixCache::Counters& cache) {
  json::object reasons;
  for (size_t i = 0; i < cache.by_reason.size(); ++i) {
    reasons[hit_reason_name(static_cast<HitReason>(i))] = cache.by_reason[i];
  }
  return {{"queried_tokens", cache.looked_up_tokens},
          {"hit_tokens", cache.hit_tokens},
          {"evictions", cache.evicted_nodes + cache.evicted_points},
          {"reasons", std::move(reasons)}};
}

}  // namespace

json::object engine_view(const EngineQueue& engine, int64_t since) {
  const EngineSnapshot now = engine.snapshot();
  json::array pages, steps;
  for (size_t i = 0; i < now.pages.size(); ++i) {
    pages.push_back(json::object{{"total", now.pages[i]}, {"free", now.free_pages[i]}});
  }
  for (const StepRecord& step : engine.steps_since(since, EngineQueue::kRecentSteps)) {
    steps.push_back(step_object(step));
  }
  return {{"waiting", now.waiting},
          {"running", now.running},
          {"pages", std::move(pages)},
          {"anchors", {{"total", now.anchors}, {"free", now.free_anchors}}},
          {"cached_chunks", now.cached_chunks},
          {"restore_points", now.restore_points},
          {"counters", counters_object(now.scheduler)},
          {"cache", cache_object(now.cache)},
          {"steps", std::move(steps)}};
}

}  // namespace weir
