#include "engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace weir {
namespace {

double milliseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

int64_t floor16(int64_t n) { return n / kPagePositions * kPagePositions; }
int64_t chunks(int64_t tokens) { return (tokens + kPagePositions - 1) / kPagePositions; }

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

void StepClock::measured(double ms, int32_t decode_rows, int32_t prompt_rows) {
  constexpr double kNew = 0.2;  // weight of the newest step
  const auto blend = [](double& value, double found) { value = value == 0 ? found : value + kNew * (found - value); };
  if (prompt_rows == 0) return blend(decode_ms_, ms);
  const double base = decode_rows > 0 ? decode_ms_ : 0;
  blend(per_row_ms_, std::max(1e-6, (ms - base) / prompt_rows));
}

int32_t StepClock::prompt_rows(double target_ms, int32_t decode_rows, int32_t most) const {
  constexpr int32_t kLeast = 16;  // prompts move on, however slow steps are
  if (most <= kLeast || decode_rows == 0) return most;
  if (per_row_ms_ == 0) return std::min(most, 64);  // nothing is known yet
  const double rows = std::max(0.0, target_ms - decode_ms_) / per_row_ms_;
  return rows >= most ? most : std::max(kLeast, static_cast<int32_t>(rows));
}

struct Scheduler::Live {
  RequestId id = 0;
  Request request;
  uint64_t arrival = 0;
  Clock::time_point submitted, started, first_token;
  std::vector<int32_t> tokens;  // prompt and answer: what the sequence's rows are computed from
  int64_t prompt_size = 0;
  TokenHistory history;
  RequestUsage usage;
  bool has_run = false, ended = false;
  bool needs_history = false;   // penalties
  uint64_t waits_for = 0;       // arrival + 1 of the request that computes this one's beginning; 0: none
  int64_t branch = 0;           // where this prompt parts from what is cached: a restore point is left there
  std::vector<int64_t> wanted;  // positions where others want one
  // While it runs:
  std::unique_ptr<Sequence> sequence;
  PrefixCache::Path path;
  RestorePoint newest;  // the deepest one passed

  int64_t left() const { return static_cast<int64_t>(tokens.size()) - sequence->length(); }
  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt_size; }
  bool in_prompt() const { return left() > 1 || sequence->length() < prompt_size; }
  int64_t most_tokens() const { return prompt_size + request.max_tokens; }
};

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
  for (int i = 0; i < engine.device().threads(); ++i) {
    samplers_.emplace_back(engine.model().spec.vocab, engine.options().kernels);
  }
}

Scheduler::~Scheduler() {
  if (store_ != nullptr) cache_.save_all();
}

// --- coming and going ---

std::string Scheduler::refusal(const Request& request) const {
  const int64_t vocab = engine_.model().spec.vocab;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t context = engine_.model().spec.max_positions;
  if (prompt == 0) return "expected at least one token, found an empty prompt";
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      return concat("token ", i, ": expected an id in [0, ", vocab, "), found ", request.prompt[i]);
    }
  }
  if (request.max_tokens < 1) return concat("max_tokens: expected at least 1, found ", request.max_tokens);
  if (prompt + request.max_tokens > context) {
    return concat("the prompt's ", prompt, " tokens and ", request.max_tokens,
                  " new ones exceed the model's context of ", context);
  }
  try {
    validate(request.sampling, vocab);
  } catch (const Error& error) {
    return error.what();
  }
  for (int group = 0; group < engine_.pools().groups(); ++group) {
    if (group == engine_.pools().journal_group()) continue;
    const int64_t there = engine_.pools().pages(group).count();
    // The answer's last token is never computed; a window's pages are given back on the way.
    int64_t needed = chunks(prompt + request.max_tokens - 1);
    if (const int64_t window = engine_.pools().window(group); window > 0) {
      needed = std::min(needed, chunks(window + engine_.options().max_batch_rows) + 2);
    }
    if (needed > there) {
      return concat("the prompt's ", prompt, " tokens and ", request.max_tokens, " new ones need ", needed,
                    " pages of ", kPagePositions, " tokens, and there are ", there,
                    ": lower max_tokens, or raise the server's --max-tokens");
    }
  }
  return {};
}

std::string Scheduler::submit(RequestId id, Request request) {
  ++counters_.submitted;
  if (std::string why = refusal(request); !why.empty()) {
    ++counters_.refused;
    return why;
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  auto live = std::make_unique<Live>();
  live->id = id;
  live->prompt_size = prompt;
  live->tokens = request.prompt;
  live->tokens.reserve(static_cast<size_t>(prompt + request.max_tokens));
  const SamplingOptions& sampling = request.sampling;
  live->needs_history =
      sampling.presence_penalty != 0 || sampling.frequency_penalty != 0 || sampling.repetition_penalty != 1;
  if (live->needs_history) live->history.add_prompt(request.prompt);
  live->request = std::move(request);
  live->request.sampling.stop_tokens = live->request.stop_tokens;
  live->arrival = arrivals_++;
  live->submitted = Clock::now();
  live->usage.prompt_tokens = prompt;
  turns_.try_emplace(live->request.client, turn(live->request.client));
  waiting_.push_back(std::move(live));
  return {};
}

// A client that comes gets its first turn with those that have had the fewest rows, not before all of them.
double Scheduler::turn(uint64_t client) {
  if (const auto found = turns_.find(client); found != turns_.end()) return found->second;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [other, rows] : turns_) least = std::min(least, rows);
  return std::isinf(least) ? 0 : least;
}

bool Scheduler::cancel(RequestId id) {
  for (std::vector<std::unique_ptr<Live>>* list : {&waiting_, &running_}) {
    for (const std::unique_ptr<Live>& live : *list) {
      if (live->id != id || live->ended) continue;
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
    if (live.newest.position > 0) cache_.keep(live.path, live.newest.position, live.newest, RestoreKind::kTurnEnd);
    cache_.save(live.path);
  }
  live.newest = RestorePoint();
  live.path.release();
  live.sequence.reset();
  sink_.on_end(live.id, result);
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

// --- admission ---

// Room for the rest of the prompt and a page to go on, beside a page for everyone who runs.
bool Scheduler::fits(const Live& live, const PrefixCache::Hit& hit) const {
  const auto size = static_cast<int64_t>(live.tokens.size());
  for (int group = 0; group < engine_.pools().groups(); ++group) {
    if (!engine_.pools().kept_forever(group)) continue;
    const int64_t there = engine_.pools().pages(group).free_count() + cache_.evictable_nodes();
    // What others still have to write of their prompts.
    int64_t promised = running();
    for (const std::unique_ptr<Live>& other : running_) promised += chunks(other->left());
    const int64_t needed = chunks(size) + 1 - hit.pinned;  // the hit's other pages count as evictable
    if (needed + promised > there && running() > 0) return false;
  }
  return true;
}

// Another request that is computing the same beginning: it leaves a restore point where they part, and this one starts
// from there.
bool Scheduler::waits_for_another(Live& live, const PrefixCache::Hit& hit) {
  if (!options_.cache.enabled) return false;
  const int64_t most = floor16(static_cast<int64_t>(live.tokens.size()) - 1);
  for (const std::unique_ptr<Live>& other : running_) {
    if (other->ended || !other->in_prompt()) continue;
    const auto parted = std::ranges::mismatch(live.tokens, other->tokens).in1 - live.tokens.begin();
    const int64_t shared = std::min(floor16(parted), most);
    if (shared <= hit.position || other->sequence->length() > shared) continue;
    if (live.waits_for == other->arrival + 1) return true;
    live.waits_for = other->arrival + 1;
    ++counters_.waits_for_prefix;
    if (engine_.pools().needs_restore_points()) {
      if (std::ranges::find(other->wanted, shared) != other->wanted.end()) return true;
      other->wanted.push_back(shared);
      if (engine_.pools().has_linear_layers()) other->sequence->blocks().want_anchor(shared);
    }
    return true;
  }
  return false;
}

void Scheduler::admit() {
  while (!waiting_.empty() && running() < engine_.options().max_sequences) {
    // By priority, then the client that has had the fewest rows, then arrival.
    order_.clear();
    for (const std::unique_ptr<Live>& live : waiting_) order_.push_back(live.get());
    const auto before = [&](const Live* a, const Live* b) {
      if (a->request.priority != b->request.priority) return a->request.priority > b->request.priority;
      const double ta = turns_[a->request.client], tb = turns_[b->request.client];
      if (ta != tb) return ta < tb;
      return a->arrival < b->arrival;
    };
    constexpr size_t kTried = 8;  // those behind may go first while the first ones wait for another's prompt
    const size_t tried = std::min(kTried, order_.size());
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(tried), order_.end(), before);
    Live* chosen = nullptr;
    for (size_t i = 0; i < tried && chosen == nullptr; ++i) {
      const PrefixCache::Hit hit = cache_.peek(order_[i]->tokens);
      if (waits_for_another(*order_[i], hit)) continue;
      if (!fits(*order_[i], hit)) return;  // nobody overtakes it for good
      chosen = order_[i];
    }
    if (chosen == nullptr) return;
    start(*chosen);
    const auto at = std::ranges::find(waiting_, chosen, [](const std::unique_ptr<Live>& live) { return live.get(); });
    const auto place = std::ranges::upper_bound(running_, chosen->arrival, {},
                                                [](const std::unique_ptr<Live>& live) { return live->arrival; });
    std::unique_ptr<Live> live = std::move(*at);
    waiting_.erase(at);
    running_.insert(place, std::move(live));
  }
}

void Scheduler::start(Live& live) {
  live.sequence = engine_.new_sequence();
  live.sequence->reserve(live.most_tokens());
  const PrefixCache::Hit hit = cache_.start(live.sequence->blocks(), live.path, live.tokens);
  live.sequence->stands_for(std::span(live.tokens).first(static_cast<size_t>(hit.position)));
  live.branch = hit.matched > hit.position ? hit.matched : 0;
  live.waits_for = 0;
  if (live.branch > 0 && engine_.pools().has_linear_layers()) live.sequence->blocks().want_anchor(live.branch);
  if (!live.has_run) {
    live.has_run = true;
    live.started = Clock::now();
    live.usage.queue_ms = milliseconds(live.started - live.submitted);
    live.usage.cached_tokens = hit.position;
    live.usage.hit = hit.reason;
  } else {
    live.usage.recomputed_tokens += static_cast<int64_t>(live.tokens.size()) - hit.position;
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
  int32_t budget = options_.chunk_rows > 0 ? std::min(options_.chunk_rows, room)
                                           : clock_.prompt_rows(options_.target_step_ms, decode, room);
  order_.clear();
  for (const std::unique_ptr<Live>& live : running_) {
    if (live->in_prompt()) order_.push_back(live.get());
  }
  std::ranges::sort(order_, [&](const Live* a, const Live* b) {
    if (a->request.priority != b->request.priority) return a->request.priority > b->request.priority;
    const double ta = turns_[a->request.client], tb = turns_[b->request.client];
    return ta != tb ? ta < tb : a->arrival < b->arrival;
  });
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
  if (Live* live = youngest()) preempt(*live);
}

void Scheduler::preempt(Live& live) {
  ++counters_.preemptions;
  ++live.usage.preemptions;
  if (live.newest.position > 0) cache_.keep(live.path, live.newest.position, live.newest, RestoreKind::kTurnEnd);
  live.newest = RestorePoint();
  live.path.release();
  live.sequence.reset();
  live.wanted.clear();
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
    if (engine_.step(spans_, observer) == StepStatus::kDone) return true;
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

bool Scheduler::step(StepObserver* observer) {
  const Clock::time_point start = Clock::now();
  admit();
  plan();
  const Clock::time_point planned = Clock::now();
  const bool ran = run_step(observer);
  const Clock::time_point ran_at = Clock::now();
  if (!ran) return false;
  sample_all();
  const Clock::time_point chosen = Clock::now();
  after_step();
  const Clock::time_point finished = Clock::now();
  const double model = milliseconds(ran_at - planned);
  counters_.model_ms += model;
  counters_.sampling_ms += milliseconds(chosen - ran_at);
  counters_.other_ms += milliseconds(planned - start) + milliseconds(finished - chosen);
  if (trace_ != nullptr) {
    TraceStep& record = trace_->next();
    const StatePools& pools = engine_.pools();
    record.step = counters_.steps;
    record.model_ms = model;
    record.other_ms = milliseconds(finished - start) - model;
    record.waiting = static_cast<int32_t>(waiting());
    record.running = static_cast<int32_t>(running());
    record.free_pages = pools.groups() > 0 ? engine_.pools().pages(0).free_count() : 0;
    record.free_anchors = engine_.pools().anchors().free_count();
    record.cached_chunks = cache_.node_count();
    record.restore_points = cache_.point_count();
    record.hit_tokens = cache_.counters().hit_tokens;
    record.evictions = cache_.counters().evicted_nodes + cache_.counters().evicted_points;
    record.preemptions = counters_.preemptions;
    for (const Planned& p : planned_) {
      trace_->add_span({p.live->id, p.position, p.rows});
    }
  }
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
    if (prompt_end && live.newest.position > 0) {
      cache_.keep(live.path, live.newest.position, live.newest, RestoreKind::kPromptEnd);
    }
  }
  live.sequence->accept(live.sequence->length());
}

// Every row's token by itself: rows are shared out among the engine's threads.
void Scheduler::sample_all() {
  const auto sample_one = [&](int64_t i, int thread) {
    const Live& live = *planned_[static_cast<size_t>(i)].live;
    std::optional<SampledToken>& result = sampled_[static_cast<size_t>(i)];
    const std::span<const float> logits = engine_.logits(i);
    if (live.left() == 0) {
      result = samplers_[static_cast<size_t>(thread)].sample(logits, live.request.sampling, live.history,
                                                             live.sequence->length(), live.generated());
    } else if (finite(logits)) {
      result.emplace();
    } else {
      result.reset();
    }
  };
  engine_.device().pool().parallel_for(static_cast<int64_t>(planned_.size()), sample_one);
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
  turns_[live.request.client] += 1;
  sink_.on_token(live.id, token);
  if (live.generated() == live.request.max_tokens) end(live, {.reason = FinishReason::kLength});
}

void Scheduler::check_idle() const {
  if (!idle()) fail("scheduler: expected no request, found ", waiting(), " waiting and ", running(), " running");
  cache_.check();
}

}  // namespace weir
