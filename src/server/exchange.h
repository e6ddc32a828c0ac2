// One request for an answer on its way: tokens from the engine's thread, text on a worker, bytes to the connection.
#pragma once

#include <atomic>
#include <boost/json/object.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "engine/engine_queue.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/reply.h"
#include "server/work_pool.h"

namespace weir {

// The object that a dialect says an error with.
using ErrorObject = boost::json::object (*)(const openai::Refusal&);

// Seconds that a client should wait before it asks again, for statuses where that helps.
http::Headers retry_headers(int status);

// Tokens wait in a list; whenever it is not empty, exactly one worker takes all of it, so that an answer's events stay
// in order and many tokens become one write. The list is bounded by max_tokens; what waits for a slow client, by the
// connection. A client that goes takes its requests with it.
class Exchange final : public WorkPool::Task, public std::enable_shared_from_this<Exchange> {
 public:
  using Clock = std::chrono::steady_clock;
  // All must outlive the exchange.
  struct Parts {
    EngineQueue* engine = nullptr;
    const openai::Served* served = nullptr;
    WorkPool* workers = nullptr;
    Metrics* metrics = nullptr;
  };

  Exchange(const Parts& parts, std::unique_ptr<Reply> reply, ErrorObject error_object,
           std::shared_ptr<http::Response> response, Clock::time_point arrived);

  // Hands the job's requests to the engine. Refusal when it doesn't take one; then nothing has been answered.
  void start();
  // Says something to a client whose stream has been silent for so long. Any thread.
  void keep_alive(Clock::duration silence);
  // Ends all requests; nothing more is answered. Any thread.
  void abandon();

  void run() noexcept override;

 private:
  class Stream;
  struct Event {
    size_t index = 0;
    Clock::time_point when;
    std::variant<SampledToken, RequestEnd> what;
  };

  void post(Event event);
  void submit(size_t index);
  void cancel_all();
  void process(std::vector<Event>& events);
  void take(const Event& event);
  void take_end(const Event& event, const RequestEnd& end);
  void fault(int status, const std::string& message);
  void complete();
  void flush();

  Parts parts_;
  std::unique_ptr<Reply> reply_;
  ErrorObject error_object_;
  std::shared_ptr<http::Response> response_;
  const Clock::time_point arrived_;
  std::vector<RequestId> ids_;  // complete after start()
  std::atomic<bool> gone_{false};
  std::atomic<Clock::rep> last_write_{0};

  std::mutex mutex_;
  std::vector<Event> waiting_;
  bool silent_ = false;    // a keep-alive is wanted
  bool scheduled_ = true;  // a worker will come; start() holds them off

  // The worker's.
  std::vector<Event> events_;
  std::vector<Answer> answers_;
  std::vector<Clock::time_point> last_token_;
  std::vector<ChatEvent> shown_;
  std::string out_;
  size_t left_ = 0;
  bool begun_ = false;  // a stream
  bool done_ = false;   // all is said
  Metrics::Tokens counted_;
};

}  // namespace weir
