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

#include "engine/scheduler.h"

namespace weir {

// What receives a request's tokens. Called by the engine's thread: must not block, nor throw.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual void on_token(const SampledToken& token) = 0;
  virtual void on_end(const RequestEnd& end) = 0;  // once, the last call
};

class Service final : private RequestSink {
 public:
  struct Options {
    SchedulerOptions scheduler;
    int64_t trace_steps = 4096;
    std::function<void(const std::string&)> died;  // the engine's thread has ended by an error; called by it
  };

  // `store` may be null. Engine and store must outlive the service; nobody else steps the engine.
  Service(Engine& engine, const Options& options, BlockStore* store = nullptr);
  ~Service();  // as stop()
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Empty, or why the request was refused: it can never be served, too many wait, the service stops or is dead. Then
  // the stream is not called.
  std::string submit(Request request, std::shared_ptr<TokenStream> stream, RequestId& id);
  // The stream's on_end follows (kCancelled), unless it has come already.
  void cancel(RequestId id);

  // No new requests; returns when all running ones have ended.
  void drain();
  // Ends all requests (kCancelled) and the thread.
  void stop();
  bool alive() const { return alive_; }

  struct Snapshot {
    Scheduler::Counters scheduler;
    PrefixCache::Counters cache;
    int64_t waiting = 0, running = 0, cached_chunks = 0, restore_points = 0;
    std::vector<int64_t> pages, free_pages;  // by group
    int64_t anchors = 0, free_anchors = 0;
  };
  Snapshot snapshot() const;  // of the end of the last step
  std::string trace();        // JSON lines of the last steps
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
  void on_token(RequestId id, const SampledToken& token) override;
  void on_end(RequestId id, const RequestEnd& end) override;
  void end_all(const RequestEnd& end);

  Engine& engine_;
  Options options_;
  TraceRecorder trace_;
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::shared_ptr<TokenStream>> streams_;  // the engine's thread's

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Command> commands_, taken_;
  bool stopping_ = false, draining_ = false, idle_ = true;
  RequestId next_id_ = 1;
  Snapshot snapshot_;
  std::atomic<bool> alive_{true};
  std::thread thread_;
};

}  // namespace weir
