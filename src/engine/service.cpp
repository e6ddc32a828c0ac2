#include "engine/service.h"

#include <algorithm>

#include "base/error.h"

namespace weir {

Service::Service(Engine& engine, const Options& options, BlockStore* store)
    : engine_(engine),
      options_(options),
      store_(store),
      trace_(options.trace_steps),
      scheduler_(engine, options.scheduler, *this, store, &trace_),
      recent_(static_cast<size_t>(kRecentSteps)) {
  take_snapshot();
  thread_ = std::thread([this] { run(); });
}

Service::~Service() { stop(); }

std::optional<SubmitRefusal> Service::submit(Request request, std::shared_ptr<TokenStream> stream, RequestId& id) {
  using Kind = SubmitRefusal::Kind;
  if (std::string why = scheduler_.refusal(request); !why.empty()) return SubmitRefusal{Kind::kNeverFits, why};
  const std::lock_guard lock(mutex_);
  if (!alive_) return SubmitRefusal{Kind::kDead, "the engine has stopped after an error"};
  if (stopping_ || draining_) return SubmitRefusal{Kind::kStopping, "the server is shutting down"};
  if (options_.max_waiting > 0 && unfinished_ >= engine_.options().max_sequences + options_.max_waiting) {
    return SubmitRefusal{Kind::kQueueFull, concat("too many requests: ", unfinished_, " run or wait already")};
  }
  ++unfinished_;
  id = next_id_++;
  commands_.push_back(
      {.kind = Command::Kind::kSubmit, .id = id, .request = std::move(request), .stream = std::move(stream)});
  idle_ = false;
  wake_.notify_one();
  return std::nullopt;
}

void Service::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  commands_.push_back({.kind = Command::Kind::kCancel, .id = id});
  wake_.notify_one();
}

void Service::between_steps(const std::function<void(Scheduler&)>& work) {
  std::unique_lock lock(mutex_);
  if (!alive_ || stopping_) return;
  bool called = false;
  commands_.push_back({.kind = Command::Kind::kCall, .call = work, .called = &called});
  wake_.notify_one();
  done_.wait(lock, [&] { return called || !alive_; });
}

void Service::drain() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  done_.wait(lock, [&] { return (idle_ && commands_.empty()) || !alive_; });
}

void Service::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

EngineSnapshot Service::snapshot() const {
  EngineSnapshot out = [&] {
    const std::lock_guard lock(mutex_);
    return snapshot_;
  }();
  if (store_ != nullptr) out.store = store_->counters();
  return out;
}

std::vector<StepRecord> Service::steps_since(int64_t since, int64_t most) const {
  const std::lock_guard lock(mutex_);
  const int64_t newest = snapshot_.scheduler.steps - 1;
  const int64_t wanted = std::min(most, kRecentSteps);
  std::vector<StepRecord> out;
  for (int64_t step = std::max({int64_t{0}, std::min(since, newest) + 1, newest - wanted + 1}); step <= newest;
       ++step) {
    out.push_back(recent_[static_cast<size_t>(step % kRecentSteps)]);
  }
  return out;
}

std::string Service::trace() {
  std::string lines;
  between_steps([&](Scheduler&) { lines = trace_.dump(); });
  return lines;
}

void Service::take_snapshot() {
  const std::lock_guard lock(mutex_);
  StatePools& pools = engine_.pools();
  const bool stepped = scheduler_.counters().steps > snapshot_.scheduler.steps;
  snapshot_.scheduler = scheduler_.counters();
  snapshot_.cache = scheduler_.cache().counters();
  snapshot_.waiting = scheduler_.waiting();
  snapshot_.running = scheduler_.running();
  snapshot_.cached_chunks = scheduler_.cache().node_count();
  snapshot_.restore_points = scheduler_.cache().point_count();
  snapshot_.pages.resize(static_cast<size_t>(pools.groups()));
  snapshot_.free_pages.resize(static_cast<size_t>(pools.groups()));
  snapshot_.page_bytes.resize(static_cast<size_t>(pools.groups()));
  for (int group = 0; group < pools.groups(); ++group) {
    snapshot_.pages[static_cast<size_t>(group)] = pools.pages(group).count();
    snapshot_.free_pages[static_cast<size_t>(group)] = pools.pages(group).free_count();
    snapshot_.page_bytes[static_cast<size_t>(group)] = pools.pages(group).block_bytes();
  }
  snapshot_.anchors = pools.anchors().count();
  snapshot_.free_anchors = pools.anchors().free_count();
  snapshot_.anchor_bytes = pools.anchors().block_bytes();
  if (stepped) note_step();
}

// With the lock held. Records keep their memory from one use to the next.
void Service::note_step() {
  const TraceStep& last = trace_.last();
  StepRecord& record = recent_[static_cast<size_t>(last.step % kRecentSteps)];
  record.step = last.step;
  record.model_ms = last.model_ms;
  record.other_ms = last.other_ms;
  record.running = last.running;
  record.waiting = last.waiting;
  record.spans.clear();
  for (int64_t i = 0; i < last.spans; ++i) record.spans.push_back(trace_.span(last, i));
  snapshot_.step_seconds.add((last.model_ms + last.other_ms) / 1e3);
}

void Service::on_token(RequestId id, const SampledToken& token) {
  if (const auto stream = streams_.find(id); stream != streams_.end()) stream->second->on_token(token);
}

void Service::on_end(RequestId id, const RequestEnd& end) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const std::shared_ptr<TokenStream> stream = std::move(found->second);
  streams_.erase(found);
  {
    const std::lock_guard lock(mutex_);
    --unfinished_;
  }
  stream->on_end(end);
}

void Service::end_all(const RequestEnd& end) {
  for (auto& [id, stream] : std::exchange(streams_, {})) stream->on_end(end);
}

// False when the service stops.
bool Service::take_commands() {
  {
    std::unique_lock lock(mutex_);
    if (scheduler_.idle() && commands_.empty()) {
      idle_ = true;
      done_.notify_all();
    }
    wake_.wait(lock, [&] { return stopping_ || !commands_.empty() || !scheduler_.idle(); });
    if (stopping_) return false;
    std::swap(commands_, taken_);
  }
  bool called = false;
  for (Command& command : taken_) {
    switch (command.kind) {
      case Command::Kind::kSubmit: {
        streams_.emplace(command.id, std::move(command.stream));
        const std::string why = scheduler_.submit(command.id, std::move(command.request));
        if (!why.empty()) on_end(command.id, {.reason = FinishReason::kError, .error = why});
        break;
      }
      case Command::Kind::kCancel:
        scheduler_.cancel(command.id);
        break;
      case Command::Kind::kCall: {
        command.call(scheduler_);
        const std::lock_guard lock(mutex_);
        *command.called = called = true;
        break;
      }
    }
  }
  taken_.clear();
  if (called) done_.notify_all();
  return true;
}

void Service::run() noexcept {
  std::string error;
  try {
    while (take_commands()) {
      scheduler_.step();
      take_snapshot();
    }
  } catch (const std::exception& e) {
    error = e.what();
  } catch (...) {
    error = "unknown error";
  }
  const bool failed = !error.empty();
  std::vector<Command> left;
  {
    const std::lock_guard lock(mutex_);
    if (failed) alive_ = false;
    std::swap(left, commands_);
    for (const Command& command : left) {
      if (command.kind == Command::Kind::kCall) *command.called = true;
    }
  }
  for (Command& command : left) {
    if (command.kind == Command::Kind::kSubmit) streams_.emplace(command.id, std::move(command.stream));
  }
  end_all(failed ? RequestEnd{.reason = FinishReason::kError, .error = error}
                 : RequestEnd{.reason = FinishReason::kCancelled});
  done_.notify_all();
  if (failed && options_.died) options_.died(error);
}

}  // namespace weir
