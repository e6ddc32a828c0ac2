#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/scheduler_live.h"

namespace weir {
namespace {

bool finite(std::span<const float> logits) {
  // A masked id may be -inf; NaN and +inf fail the comparison or the sum.
  float largest = -std::numeric_limits<float>::infinity();
  bool ok = true;
  for (const float logit : logits) {
    ok &= logit < std::numeric_limits<float>::infinity();
    largest = logit > largest ? logit : largest;
  }
  return ok && largest > -std::numeric_limits<float>::infinity();
}

}  // namespace

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options, RequestSink& sink, BlockStore* store,
                     TraceRecorder* trace)
    : engine_(engine),
      options_(options),
      sink_(sink),
      store_(store),
      trace_(trace),
      cache_(engine.pools(), options.cache, store) {
  const auto most = static_cast<size_t>(engine.options().max_sequences);
  assert(engine.options().max_logit_rows >= engine.options().max_sequences);
  assert(engine.options().max_batch_rows >= engine.options().max_sequences);
  running_.reserve(most);
  planned_.reserve(most);
  spans_.reserve(most);
  order_.reserve(most);
  sampled_.resize(most);
  if (engine.gpu() != nullptr) {
    gpu_sampler_ = make_cuda_sampler(*engine.gpu(), engine.model().spec.vocab, static_cast<int32_t>(most));
    sample_rows_.reserve(most);
    return;
  }
  for (int i = 0; i < engine.host().threads(); ++i) {
    samplers_.emplace_back(engine.model().spec.vocab, engine.options().kernels);
  }
}

Scheduler::~Scheduler() {
  if (store_ != nullptr) cache_.save_all();
}

// --- going ---

bool Scheduler::cancel(RequestId id) {
  for (std::vector<std::unique_ptr<Live>>* list : {&waiting_, &running_}) {
    for (const std::unique_ptr<Live>& live : *list) {
      if (live->id != id || live->ended) continue;
      if (options_.log != nullptr) options_.log->cancelled(id);
      end(*live, {.reason = FinishReason::kCancelled});
      sweep();
      return true;
    }
  }
  return false;
}

void Scheduler::end(Live& live, RequestEnd result) {
  if (live.ended) return;
  live.ended = true;
  const Clock::time_point now = Clock::now();
  RequestUsage& usage = live.usage;
  usage.generated_tokens = live.generated() + (result.stop_token >= 0 ? 1 : 0);
  const bool decoded = live.first_token != Clock::time_point{};
  if (!live.has_run) usage.queue_ms = milliseconds(now - live.submitted);
  if (live.has_run && !decoded) usage.prompt_ms = milliseconds(now - live.started);
  if (decoded) usage.decode_ms = milliseconds(now - live.first_token);
  result.usage = usage;
  switch (result.reason) {
    case FinishReason::kCancelled:
      ++counters_.cancelled;
      break;
    case FinishReason::kError:
      ++counters_.failed;
      break;
    default:
      ++counters_.finished;
  }
  if (live.sequence != nullptr && result.reason != FinishReason::kError) {
    keep_newest(live, RestoreKind::kTurnEnd);
    cache_.save(live.path);
  }
  give_back(live);
  sink_.on_end(live.id, result);
}

void Scheduler::keep_newest(Live& live, RestoreKind kind) {
  if (live.newest.position > 0) cache_.keep(live.path, live.newest.position, live.newest, kind);
}

void Scheduler::give_back(Live& live) {
  live.newest = RestorePoint();
  live.path.release();
  live.sequence.reset();
  live.wanted.clear();
}

void Scheduler::sweep() {
  for (std::vector<std::unique_ptr<Live>>* list : {&waiting_, &running_}) {
    std::erase_if(*list, [](const std::unique_ptr<Live>& live) { return live->ended; });
  }
  if (turns_.size() > waiting_.size() + running_.size()) {
    std::erase_if(turns_, [&](const auto& entry) {
      const auto of_client = [&](const std::unique_ptr<Live>& live) { return live->request.client == entry.first; };
      return std::ranges::none_of(waiting_, of_client) && std::ranges::none_of(running_, of_client);
    });
  }
}

// --- a step ---

void Scheduler::add_span(Live& live, int32_t rows) {
  const int64_t from = live.sequence->length();
  if (engine_.pools().has_linear_layers() && rows > 1) {
    for (int64_t p = floor16(from) + kPagePositions; p < from + rows; p += kPagePositions) {
      if (cache_.wants(p)) live.sequence->blocks().want_anchor(p);
    }
  }
  planned_.push_back({&live, from, rows, !live.in_prompt()});
  const std::span<const int32_t> tokens =
      std::span(live.tokens).subspan(static_cast<size_t>(from), static_cast<size_t>(rows));
  // The last row of every chunk wants logits: they show whether the rows may be cached.
  spans_.push_back({live.sequence.get(), tokens, LogitsWanted::kLast});
}

int32_t Scheduler::prompt_budget(int32_t decode_rows, int32_t room) const {
  if (replayed_rows_) return std::min(*replayed_rows_, room);
  if (options_.chunk_rows > 0) return std::min(options_.chunk_rows, room);
  return clock_.prompt_rows(options_.target_step_ms, decode_rows, room);
}

void Scheduler::plan() {
  planned_.clear();
  spans_.clear();
  int32_t decode = 0;
  for (const std::unique_ptr<Live>& live : running_) {
    if (live->in_prompt()) continue;
    add_span(*live, 1);
    ++decode;
  }
  const int32_t room = engine_.options().max_batch_rows - decode;
  int32_t budget = prompt_budget(decode, room);
  if (options_.log != nullptr && !running_.empty()) options_.log->stepped(budget);
  order_.clear();
  for (const std::unique_ptr<Live>& live : running_) {
    if (live->in_prompt()) order_.push_back(live.get());
  }
  std::ranges::sort(order_, [&](const Live* a, const Live* b) { return goes_first(*a, *b); });
  for (Live* live : order_) {
    if (budget <= 0) break;
    const auto rows = static_cast<int32_t>(prompt_chunk(live->sequence->length(), live->left(), budget));
    add_span(*live, rows);
    turns_[live->request.client] += rows;
    budget -= rows;
  }
}

bool Scheduler::make_room() {
  StatePools& pools = engine_.pools();
  const int group = pools.short_of();
  if (group < 0 ? cache_.evict_anchor() : cache_.evict_page(group)) return true;
  // Restore points that are wished for and not needed.
  bool fewer = false;
  if (group < 0) {
    for (const Planned& p : planned_) fewer |= p.live->sequence->blocks().forget_wanted_anchors();
  }
  if (fewer) return true;
  Live* live = youngest();
  if (live == nullptr || running() < 2) return false;
  preempt(*live);
  return true;
}

Scheduler::Live* Scheduler::youngest() {
  Live* found = nullptr;
  for (const std::unique_ptr<Live>& live : running_) {
    if (found == nullptr || live->request.priority < found->request.priority ||
        (live->request.priority == found->request.priority && live->arrival > found->arrival)) {
      found = live.get();
    }
  }
  return found;
}

void Scheduler::preempt_youngest() {
  if (options_.log != nullptr) options_.log->preempted();
  if (Live* live = youngest()) preempt(*live);
}

void Scheduler::preempt(Live& live) {
  ++counters_.preemptions;
  ++live.usage.preemptions;
  keep_newest(live, RestoreKind::kTurnEnd);
  give_back(live);
  for (size_t i = 0; i < planned_.size(); ++i) {
    if (planned_[i].live != &live) continue;
    planned_.erase(planned_.begin() + static_cast<std::ptrdiff_t>(i));
    spans_.erase(spans_.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  const auto at = std::ranges::find(running_, &live, [](const std::unique_ptr<Live>& l) { return l.get(); });
  std::unique_ptr<Live> moved = std::move(*at);
  running_.erase(at);
  waiting_.push_back(std::move(moved));
}

bool Scheduler::run_step(StepObserver* observer) {
  while (!spans_.empty()) {
    const StepStatus status = engine_.step(spans_, observer);
    if (status == StepStatus::kDone) return true;
    if (status == StepStatus::kDeviceFailed) fail(engine_.failure());
    if (make_room()) continue;
    // Not reached while submit() refuses what can never fit: one request alone has all blocks.
    end(*planned_.front().live,
        {.reason = FinishReason::kError, .error = "the pages or anchors of this engine are used up"});
    planned_.clear();
    spans_.clear();
    sweep();
  }
  return false;
}

bool Scheduler::step_with(int32_t prompt_rows, StepObserver* observer) {
  replayed_rows_ = prompt_rows;
  const bool more = step(observer);
  replayed_rows_.reset();
  return more;
}

bool Scheduler::step(StepObserver* observer) {
  const Clock::time_point start = Clock::now();
  admit();
  plan();
  const Clock::time_point planned = Clock::now();
  const bool ran = run_step(observer);
  const Clock::time_point ran_at = Clock::now();
  if (!ran) return !idle();
  sample_all();
  const Clock::time_point chosen = Clock::now();
  after_step();
  const Clock::time_point finished = Clock::now();
  const double model = milliseconds(ran_at - planned);
  counters_.model_ms += model;
  counters_.sampling_ms += milliseconds(chosen - ran_at);
  counters_.other_ms += milliseconds(planned - start) + milliseconds(finished - chosen);
  if (trace_ != nullptr) record_step(model, milliseconds(finished - start) - model);
  int32_t decode = 0, prompt = 0;
  for (const Planned& p : planned_) (p.decode ? decode : prompt) += p.rows;
  clock_.measured(milliseconds(chosen - planned), decode, prompt);
  ++counters_.steps;
  counters_.rows += decode + prompt;
  counters_.decode_rows += decode;
  counters_.prompt_rows += prompt;
  counters_.most_rows_of_a_step = std::max<int64_t>(counters_.most_rows_of_a_step, decode + prompt);
  counters_.most_sequences_of_a_step =
      std::max<int64_t>(counters_.most_sequences_of_a_step, static_cast<int64_t>(planned_.size()));
  planned_.clear();
  spans_.clear();
  sweep();
  return true;
}

void Scheduler::record_step(double model_ms, double other_ms) {
  TraceStep& record = trace_->next();
  StatePools& pools = engine_.pools();
  record.step = counters_.steps;
  record.model_ms = model_ms;
  record.other_ms = other_ms;
  record.waiting = static_cast<int32_t>(waiting());
  record.running = static_cast<int32_t>(running());
  record.free_pages = pools.groups() > 0 ? pools.pages(0).free_count() : 0;
  record.free_anchors = pools.anchors().free_count();
  record.cached_chunks = cache_.node_count();
  record.restore_points = cache_.point_count();
  record.hit_tokens = cache_.counters().hit_tokens;
  record.evictions = cache_.counters().evicted_nodes + cache_.counters().evicted_points;
  record.preemptions = counters_.preemptions;
  for (const Planned& p : planned_) trace_->add_span({p.live->id, p.position, p.rows});
}

// What the step's rows leave behind for others, and for this request should it be preempted.
void Scheduler::remember(Live& live, int64_t before, bool prompt_end) {
  const SequenceState& state = live.sequence->state();
  cache_.extend(live.path, state, live.tokens);
  StatePools& pools = engine_.pools();
  if (options_.cache.enabled && pools.needs_restore_points()) {
    const int64_t length = state.length();
    // An anchor is made by the row that follows it.
    const int64_t deepest = floor16(pools.has_linear_layers() ? length - 1 : length);
    for (int64_t p = floor16(before); p <= deepest; p += kPagePositions) {
      if (p <= 0) continue;
      const bool wanted = std::ranges::find(live.wanted, p) != live.wanted.end();
      RestoreKind kind = RestoreKind::kNone;
      if (p == live.branch || wanted) {
        kind = RestoreKind::kBranch;
      } else if (cache_.wants(p)) {
        kind = RestoreKind::kBackbone;
      }
      if (kind == RestoreKind::kNone && p != deepest) continue;
      if (p <= live.newest.position) continue;
      if (!state.capture(p, captured_)) continue;
      if (kind != RestoreKind::kNone) cache_.keep(live.path, p, captured_, kind);
      if (p == deepest) std::swap(live.newest, captured_);  // both keep their lists' memory
      captured_.clear();
    }
    if (prompt_end) keep_newest(live, RestoreKind::kPromptEnd);
  }
  live.sequence->accept(live.sequence->length());
}

// On the device, from logits that stay there. Rows within a prompt are only asked whether they are finite.
void Scheduler::sample_on_gpu() {
  static const SamplingOptions kGreedy;
  sample_rows_.clear();
  for (const Planned& planned : planned_) {
    const Live& live = *planned.live;
    const bool last = live.left() == 0;
    SampleRow row{.options = last ? &live.request.sampling : &kGreedy, .position = live.sequence->length()};
    if (last) {
      row.history = &live.history;
      row.generated = live.generated();
      if (live.request.mask) row.allowed = live.request.mask->allowed();
    }
    sample_rows_.push_back(row);
  }
  const Buffer logits = engine_.circuit().logits;
  gpu_sampler_->enqueue(sample_rows_, logits.data, logits.cols);
  const std::span<const std::optional<SampledToken>> chosen = gpu_sampler_->wait();
  if (const std::string error = engine_.gpu()->error(); !error.empty()) fail(error);
  std::ranges::copy(chosen, sampled_.begin());
}

// Every row's token by itself: rows are shared out among the engine's threads.
void Scheduler::sample_all() {
  if (gpu_sampler_ != nullptr) return sample_on_gpu();
  const auto sample_one = [&](int64_t i, int thread) {
    const Live& live = *planned_[static_cast<size_t>(i)].live;
    std::optional<SampledToken>& result = sampled_[static_cast<size_t>(i)];
    const std::span<const float> logits = engine_.logits(i);
    if (live.left() == 0) {
      std::span<const uint32_t> allowed;
      if (live.request.mask) allowed = live.request.mask->allowed();
      result = samplers_[static_cast<size_t>(thread)].sample(logits, live.request.sampling, live.history,
                                                             live.sequence->length(), live.generated(), allowed);
    } else if (finite(logits)) {
      result.emplace();
    } else {
      result.reset();
    }
  };
  engine_.host().pool().parallel_for(static_cast<int64_t>(planned_.size()), sample_one);
}

void Scheduler::after_step() {
  for (size_t i = 0; i < planned_.size(); ++i) {
    Live& live = *planned_[i].live;
    const int64_t length = live.sequence->length();
    if (!sampled_[i]) {
      const bool possible = finite(engine_.logits(static_cast<int64_t>(i)));
      end(live, {.reason = FinishReason::kError,
                 .error = possible ? concat("position ", length, ": no token is allowed")
                                   : concat("position ", length - 1, ": a logit is not finite")});
      continue;
    }
    const bool done = live.left() == 0;
    remember(live, length - planned_[i].rows, done && length == live.prompt_size);
    if (done) sampled(live, *sampled_[i]);
  }
}

void Scheduler::sampled(Live& live, const SampledToken& token) {
  if (live.first_token == Clock::time_point{}) {
    live.first_token = Clock::now();
    live.usage.prompt_ms = milliseconds(live.first_token - live.started);
  }
  const std::vector<int32_t>& stops = live.request.stop_tokens;
  if (std::ranges::find(stops, token.id) != stops.end()) {
    return end(live, {.reason = FinishReason::kStop, .stop_token = token.id});
  }
  live.tokens.push_back(token.id);
  if (live.needs_history) live.history.add(token.id);
  if (live.request.mask) live.request.mask->push(token.id);
  turns_[live.request.client] += 1;
  sink_.on_token(live.id, token);
  if (live.generated() == live.request.max_tokens) end(live, {.reason = FinishReason::kLength});
}

void Scheduler::check_idle() const {
  if (!idle()) fail("scheduler: expected no request, found ", waiting(), " waiting and ", running(), " running");
  cache_.check();
}

}  // namespace weir
