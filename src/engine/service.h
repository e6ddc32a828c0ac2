// The engine as others use it: a thread that owns all sequence state, and a queue in front of it. Requests come from
// any thread; tokens go to the stream that came with the request, called by the engine's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine_queue.h"

namespace weir {

class Service final : public EngineQueue, private RequestSink {
 public:
  struct Options {
    SchedulerOptions scheduler;
    int64_t trace_steps = 4096;
    int64_t max_waiting = 0;                       // requests beyond those that may run; 0: any number
    std::function<void(const std::string&)> died;  // the engine's thread has ended by an error; called by it
  };

  // `store` may be null. Engine and store must outlive the service; nobody else steps the engine.
  Service(Engine& engine, const Options& options, BlockStore* store = nullptr);
  ~Service() override;  // as stop()
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  std::optional<SubmitRefusal> submit(Request request, std::shared_ptr<TokenStream> stream, RequestId& id) override;
  void cancel(RequestId id) override;

  // No new requests; returns when all running ones have ended.
  void drain();
  // Ends all requests (kCancelled) and the thread.
  void stop();
  bool alive() const override { return alive_; }

  EngineSnapshot snapshot() const override;
  std::vector<StepRecord> steps_since(int64_t since, int64_t most) const override;
  std::string trace();  // JSON lines of the last steps
  // Runs on the engine's thread between two steps (tests, checks); waits for it.
  void between_steps(const std::function<void(Scheduler&)>& work);

 private:
  struct Command {
    enum class Kind { kSubmit, kCancel, kCall } kind = Kind::kSubmit;
    RequestId id = 0;
    Request request;
    std::shared_ptr<TokenStream> stream;
    std::function<void(Scheduler&)> call;
    bool* called = nullptr;
  };
  void run() noexcept;
  bool take_commands();
  void take_snapshot();
  void note_step();
  void on_token(RequestId id, const SampledToken& token) override;
  void on_end(RequestId id, const RequestEnd& end) override;
  void end_all(const RequestEnd& end);

  Engine& engine_;
  Options options_;
  BlockStore* store_;
  TraceRecorder trace_;
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::shared_ptr<TokenStream>> streams_;  // the engine's thread's

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Command> commands_, taken_;
  bool stopping_ = false, draining_ = false, idle_ = true;
  RequestId next_id_ = 1;
  int64_t unfinished_ = 0;
  EngineSnapshot snapshot_;
  std::vector<StepRecord> recent_;  // step n at n % kRecentSteps
  std::atomic<bool> alive_{true};
  std::thread thread_;
};

}  // namespace weir
