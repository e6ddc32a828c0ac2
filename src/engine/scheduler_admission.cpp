// Which requests come in, and which of those that wait start to run.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "engine/scheduler_live.h"

namespace weir {

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
    int64_t needed = chunks_for(prompt + request.max_tokens - 1);
    if (const int64_t window = engine_.pools().window(group); window > 0) {
      needed = std::min(needed, chunks_for(window + engine_.options().max_batch_rows) + 2);
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
  if (options_.log != nullptr) options_.log->submitted(id, request);
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

// Room for the rest of the prompt and a page to go on, beside a page for everyone who runs.
bool Scheduler::fits(const Live& live, const PrefixCache::Hit& hit) const {
  const auto size = static_cast<int64_t>(live.tokens.size());
  for (int group = 0; group < engine_.pools().groups(); ++group) {
    if (!engine_.pools().kept_forever(group)) continue;
    const int64_t there = engine_.pools().pages(group).free_count() + cache_.evictable_nodes();
    // What others still have to write of their prompts.
    int64_t promised = running();
    for (const std::unique_ptr<Live>& other : running_) promised += chunks_for(other->left());
    const int64_t needed = chunks_for(size) + 1 - hit.pinned;  // the hit's other pages count as evictable
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

// By priority, then the client that has had the fewest rows, then arrival.
bool Scheduler::goes_first(const Live& a, const Live& b) const {
  if (a.request.priority != b.request.priority) return a.request.priority > b.request.priority;
  const double ta = turns_.at(a.request.client), tb = turns_.at(b.request.client);
  return ta != tb ? ta < tb : a.arrival < b.arrival;
}

void Scheduler::admit() {
  while (!waiting_.empty() && running() < engine_.options().max_sequences) {
    order_.clear();
    for (const std::unique_ptr<Live>& live : waiting_) order_.push_back(live.get());
    constexpr size_t kTried = 8;  // those behind may go first while the first ones wait for another's prompt
    const size_t tried = std::min(kTried, order_.size());
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(tried), order_.end(),
                      [&](const Live* a, const Live* b) { return goes_first(*a, *b); });
    Live* chosen = nullptr;
    PrefixCache::Hit hit;
    for (size_t i = 0; i < tried && chosen == nullptr; ++i) {
      hit = cache_.peek(order_[i]->tokens);
      if (waits_for_another(*order_[i], hit)) continue;
      if (!fits(*order_[i], hit)) return;  // nobody overtakes it for good
      chosen = order_[i];
    }
    if (chosen == nullptr) return;
    start(*chosen, hit);
    const auto at = std::ranges::find(waiting_, chosen, [](const std::unique_ptr<Live>& live) { return live.get(); });
    const auto place = std::ranges::upper_bound(running_, chosen->arrival, {},
                                                [](const std::unique_ptr<Live>& live) { return live->arrival; });
    std::unique_ptr<Live> live = std::move(*at);
    waiting_.erase(at);
    running_.insert(place, std::move(live));
  }
}

void Scheduler::start(Live& live, const PrefixCache::Hit& found) {
  live.sequence = engine_.new_sequence();
  live.sequence->reserve(live.most_tokens());
  const PrefixCache::Hit hit = cache_.start(live.sequence->blocks(), live.path, live.tokens, found);
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

}  // namespace weir
