#include "server/metrics.h"

#include "base/error.h"

namespace weir {

void Metrics::responded(int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[status];
}

void Metrics::error(std::string_view kind) {
  const std::lock_guard lock(mutex_);
  ++errors_.try_emplace(std::string(kind)).first->second;
}

void Metrics::client_gone() {
  const std::lock_guard lock(mutex_);
  ++clients_gone_;
}

void Metrics::request_started(double preparation_seconds) {
  const std::lock_guard lock(mutex_);
  preparation_.add(preparation_seconds);
}

void Metrics::tokens(const Tokens& tokens) {
  const std::lock_guard lock(mutex_);
  for (const double seconds : tokens.first) first_.add(seconds);
  for (const double seconds : tokens.between) between_.add(seconds);
  to_socket_.add(tokens.to_socket_seconds);
}

void Metrics::finished(const Finished& finished) {
  const std::lock_guard lock(mutex_);
  whole_.add(finished.seconds);
  totals_.prompt_tokens += finished.prompt_tokens;
  totals_.cached_tokens += finished.cached_tokens;
  totals_.completion_tokens += finished.completion_tokens;
  totals_.reasoning_tokens += finished.reasoning_tokens;
}

void Metrics::write(PrometheusText& out) const {
  const std::lock_guard lock(mutex_);
  out.counter("http_responses_total", "Responses by status.");
  for (const auto& [status, count] : responses_) out.sample(static_cast<double>(count), {{"code", concat(status)}});
  out.counter("errors_total", "Requests that were refused or failed, by kind.");
  for (const auto& [kind, count] : errors_) out.sample(static_cast<double>(count), {{"kind", kind}});
  const auto total = [&](std::string_view name, std::string_view help, int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  total("clients_gone_total", "Clients that left, or read too slowly, before their answer was complete.",
        clients_gone_);
  total("prompt_tokens_total", "Tokens of the prompts of finished requests.", totals_.prompt_tokens);
  total("prompt_cached_tokens_total", "Of these, tokens that needed no computing.", totals_.cached_tokens);
  total("completion_tokens_total", "Tokens of finished answers.", totals_.completion_tokens);
  total("reasoning_tokens_total", "Of these, tokens of reasoning.", totals_.reasoning_tokens);
  out.histogram("request_preparation_seconds", "From a request's arrival until the engine has it.", preparation_);
  out.histogram("token_delivery_seconds", "From the engine's choice of a token to its bytes at the connection.",
                to_socket_);
  out.histogram("time_to_first_token_seconds", "From a request's arrival to its first token.", first_);
  out.histogram("inter_token_latency_seconds", "From one token of an answer to the next.", between_);
  out.histogram("request_duration_seconds", "From a request's arrival to its answer's end.", whole_);
}

namespace {

void write_requests(const EngineSnapshot& engine, PrometheusText& out) {
  const Scheduler::Counters& counters = engine.scheduler;
  const auto total = [&](std::string_view name, std::string_view help, int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  out.gauge("requests_running", "Requests that are being computed.", static_cast<double>(engine.running));
  out.gauge("requests_waiting", "Requests that wait for room.", static_cast<double>(engine.waiting));
  total("requests_submitted_total", "Requests that the engine got; a body with n answers has n.", counters.submitted);
  total("requests_finished_total", "Requests that came to their end.", counters.finished);
  total("requests_cancelled_total", "Requests that were cancelled, by a stop string or a client that left.",
        counters.cancelled);
  total("requests_failed_total", "Requests that ended with an error of the engine.", counters.failed);
  total("preemptions_total", "Requests that had to give their blocks back and wait again.", counters.preemptions);
  total("steps_total", "Steps of the engine.", counters.steps);
  out.counter("rows_total", "Positions computed, by what they were for.");
  out.sample(static_cast<double>(counters.prompt_rows), {{"kind", "prompt"}});
  out.sample(static_cast<double>(counters.decode_rows), {{"kind", "decode"}});
  out.histogram("step_duration_seconds", "Time of a step.", engine.step_seconds);
}

void write_blocks(const EngineSnapshot& engine, PrometheusText& out) {
  out.gauge("pages_capacity", "Pages that there are, by group of layers.");
  for (size_t i = 0; i < engine.pages.size(); ++i) {
    out.sample(static_cast<double>(engine.pages[i]), {{"group", concat(i)}});
  }
  out.gauge("pages_used", "Pages that sequences or the cache hold, by group of layers.");
  double bytes = 0;
  for (size_t i = 0; i < engine.pages.size(); ++i) {
    const auto used = static_cast<double>(engine.pages[i] - engine.free_pages[i]);
    out.sample(used, {{"group", concat(i)}});
    bytes += used * static_cast<double>(engine.page_bytes[i]);
  }
  const auto anchors = static_cast<double>(engine.anchors - engine.free_anchors);
  out.gauge("anchors_capacity", "Anchors that there are.", static_cast<double>(engine.anchors));
  out.gauge("anchors_used", "Anchors that sequences or the cache hold.", anchors);
  out.gauge("state_bytes", "Bytes of sequences' state and of the cache, by where they are.");
  out.sample(bytes, {{"tier", "pages"}});
  out.sample(anchors * static_cast<double>(engine.anchor_bytes), {{"tier", "anchors"}});
  out.sample(static_cast<double>(engine.store.bytes_host), {{"tier", "host"}});
  out.sample(static_cast<double>(engine.store.bytes_disk), {{"tier", "disk"}});
}

void write_cache(const EngineSnapshot& engine, PrometheusText& out) {
  const PrefixCache::Counters& cache = engine.cache;
  const auto total = [&](std::string_view name, std::string_view help, int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  total("cache_queried_tokens_total", "Prompt tokens that the prefix cache was asked for.", cache.looked_up_tokens);
  total("cache_hit_tokens_total", "Of these, tokens that needed no computing.", cache.hit_tokens);
  out.counter("cache_lookups_total", "Look-ups, by why they found no more than they did.");
  for (size_t i = 0; i < cache.by_reason.size(); ++i) {
    out.sample(static_cast<double>(cache.by_reason[i]), {{"reason", hit_reason_name(static_cast<HitReason>(i))}});
  }
  out.counter("cache_evictions_total", "What left the cache.");
  out.sample(static_cast<double>(cache.evicted_nodes), {{"what", "chunk"}});
  out.sample(static_cast<double>(cache.evicted_points), {{"what", "restore_point"}});
  out.gauge("cache_chunks", "Chunks of 16 tokens in the cache.", static_cast<double>(engine.cached_chunks));
  out.gauge("cache_restore_points", "Places where a request may start.", static_cast<double>(engine.restore_points));
  total("cache_damaged_blocks_total", "Stored blocks whose checksum was wrong.", engine.store.dropped_damaged);
}

}  // namespace

void write_metrics(const EngineSnapshot& engine, PrometheusText& out) {
  write_requests(engine, out);
  write_blocks(engine, out);
  write_cache(engine, out);
}

void write_metrics(const http::Server::Counters& connections, PrometheusText& out) {
  const auto total = [&](std::string_view name, std::string_view help, int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  out.gauge("http_connections", "Connections that are open.", static_cast<double>(connections.open));
  total("http_connections_total", "Connections that were accepted.", connections.accepted);
  total("http_connections_refused_total", "Connections beyond the limit.", connections.refused);
  total("http_requests_total", "Requests that were read.", connections.requests);
  total("http_slow_readers_total", "Connections that were cut because nobody read.", connections.slow_readers);
  total("http_timeouts_total", "Connections that were cut because nothing came.", connections.timed_out);
}

}  // namespace weir
