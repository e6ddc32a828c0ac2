// An engine that says what it is told to, behind the queue of the real one: for tests of what stands in front of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "engine/engine_queue.h"

namespace weir::test {

struct ReplayAnswer {
  std::vector<int32_t> ids;  // up to a stop token, if the answer has one
  std::string error;         // if not empty, what happens after the ids
};

class ReplayEngine final : public EngineQueue {
 public:
  struct Options {
    std::function<ReplayAnswer(const Request&)> answer;
    std::chrono::microseconds step{0};  // time of one
    int64_t max_running = 64, max_waiting = 64;
    int64_t max_tokens = 1 << 20;  // of a request
  };
  explicit ReplayEngine(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}
  ~ReplayEngine() override { stop(); }

  std::optional<SubmitRefusal> submit(Request request, std::shared_ptr<TokenStream> stream, RequestId& id) override {
    using Kind = SubmitRefusal::Kind;
    const std::lock_guard lock(mutex_);
    if (!alive_) return SubmitRefusal{Kind::kDead, "the engine has stopped after an error"};
    if (stopping_) return SubmitRefusal{Kind::kStopping, "the server is shutting down"};
    if (static_cast<int64_t>(request.prompt.size()) + request.max_tokens > options_.max_tokens) {
      return SubmitRefusal{Kind::kNeverFits, concat("more than ", options_.max_tokens, " tokens")};
    }
    if (static_cast<int64_t>(live_.size()) >= options_.max_running + options_.max_waiting) {
      return SubmitRefusal{Kind::kQueueFull, "too many requests"};
    }
    id = next_++;
    ++snapshot_.scheduler.submitted;
    Live live{.answer = options_.answer(request), .stream = std::move(stream)};
    live.request = std::move(request);
    live_.emplace(id, std::move(live));
    wake_.notify_all();
    return std::nullopt;
  }
  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = live_.find(id); found != live_.end()) found->second.cancelled = true;
    wake_.notify_all();
  }
  bool alive() const override {
    const std::lock_guard lock(mutex_);
    return alive_;
  }
  EngineSnapshot snapshot() const override {
    const std::lock_guard lock(mutex_);
    EngineSnapshot out = snapshot_;
    out.running = std::min(static_cast<int64_t>(live_.size()), options_.max_running);
    out.waiting = static_cast<int64_t>(live_.size()) - out.running;
    return out;
  }
  std::vector<StepRecord> steps_since(int64_t since, int64_t most) const override {
    const std::lock_guard lock(mutex_);
    std::vector<StepRecord> out;
    for (const StepRecord& step : steps_) {
      if (step.step > since) out.push_back(step);
    }
    if (static_cast<int64_t>(out.size()) > most) out.erase(out.begin(), out.end() - most);
    return out;
  }

  // No tokens until released; cancelled requests end all the same.
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    wake_.notify_all();
  }
  // Ends as the real one does after an error of its thread.
  void die(const std::string& why) {
    end_all({.reason = FinishReason::kError, .error = why}, [&] { alive_ = false; });
  }
  void stop() {
    end_all({.reason = FinishReason::kCancelled}, [&] { stopping_ = true; });
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Live {
    ReplayAnswer answer;
    std::shared_ptr<TokenStream> stream;
    Request request;
    size_t said = 0;
    bool cancelled = false;
  };

  template <class Change>
  void end_all(const RequestEnd& end, const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    for (auto& [id, live] : std::exchange(live_, {})) live.stream->on_end(end);
    wake_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const auto ready = [&] {
        if (stopping_ || (!held_ && !live_.empty())) return true;
        return std::ranges::any_of(live_, [](const auto& entry) { return entry.second.cancelled; });
      };
      wake_.wait(lock, ready);
      step();
      if (options_.step.count() > 0) wake_.wait_for(lock, options_.step, [&] { return stopping_; });
    }
  }

  void step() {
    StepRecord record{.step = snapshot_.scheduler.steps++, .running = static_cast<int32_t>(live_.size())};
    int64_t running = 0;
    for (auto at = live_.begin(); at != live_.end();) {
      const bool runs = running++ < options_.max_running && !held_;
      const std::optional<RequestEnd> end = advance(at->second, runs);
      if (runs) record.spans.push_back({at->first, static_cast<int64_t>(at->second.said), 1});
      if (end) {
        const std::shared_ptr<TokenStream> stream = std::move(at->second.stream);
        at = live_.erase(at);
        stream->on_end(*end);
      } else {
        ++at;
      }
    }
    steps_.push_back(std::move(record));
    if (static_cast<int64_t>(steps_.size()) > kRecentSteps) steps_.erase(steps_.begin());
  }

  std::optional<RequestEnd> advance(Live& live, bool runs) {
    RequestEnd end;
    end.usage = {.prompt_tokens = static_cast<int64_t>(live.request.prompt.size()),
                 .generated_tokens = static_cast<int64_t>(live.said)};
    if (live.cancelled) {
      ++snapshot_.scheduler.cancelled;
      end.reason = FinishReason::kCancelled;
      return end;
    }
    if (!runs) return std::nullopt;
    if (live.said == live.answer.ids.size() || static_cast<int64_t>(live.said) == live.request.max_tokens) {
      const bool failed = live.said == live.answer.ids.size() && !live.answer.error.empty();
      end.reason = failed ? FinishReason::kError : FinishReason::kLength;
      if (failed) end.error = live.answer.error;
      ++(failed ? snapshot_.scheduler.failed : snapshot_.scheduler.finished);
      return end;
    }
    const int32_t id = live.answer.ids[live.said++];
    if (std::ranges::find(live.request.stop_tokens, id) != live.request.stop_tokens.end()) {
      ++snapshot_.scheduler.finished;
      end.reason = FinishReason::kStop;
      end.stop_token = id;
      ++end.usage.generated_tokens;
      return end;
    }
    SampledToken token{.id = id, .logprob = -0.125f * static_cast<float>(live.said)};
    for (int32_t i = 0; i < live.request.sampling.top_logprobs; ++i)
      token.top.add(i + 1, -1.0f - static_cast<float>(i));
    live.stream->on_token(token);
    return std::nullopt;
  }

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<RequestId, Live> live_;
  std::vector<StepRecord> steps_;
  EngineSnapshot snapshot_;
  RequestId next_ = 1;
  bool alive_ = true, stopping_ = false, held_ = false;
  std::thread thread_;
};

}  // namespace weir::test
