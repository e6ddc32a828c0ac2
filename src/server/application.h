// What the server answers: every path, from the bytes of a request to those of its response. The transport and the
// engine are somebody else's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/access.h"
#include "server/exchange.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/response_store.h"
#include "server/work_pool.h"

namespace weir {

// Of fields that bodies leave out.
struct AnswerDefaults {
  SamplingOptions sampling;
  bool new_seeds = false;  // for each request
};

struct Dialect;

class Application {
 public:
  struct Options {
    ApiKeys keys;
    std::string cors_origin;           // that browsers' pages may come from; empty: only the server's own, "*": any
    std::vector<std::string> aliases;  // names of the model besides its own
    std::chrono::milliseconds keep_alive{5000};        // that a stream may be silent
    std::function<void(const std::string& line)> log;  // for who runs the server; any thread; may be empty
  };
  enum class State { kLoading, kReady, kDraining, kFaulted };

  explicit Application(Options options);
  ~Application();  // as close()
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;

  // An http::Handler, and an http::ErrorBody.
  void handle(http::Request request, std::shared_ptr<http::Response> response);
  static std::string error_body(int status, const std::string& message, std::string_view path);
  void count_connections(std::function<http::Server::Counters()> counters);  // for GET /metrics

  // loading -> ready. Both must live until close().
  void open(const openai::Served& served, EngineQueue& engine, const AnswerDefaults& defaults = {});
  void drain();                        // no new requests
  void fault(const std::string& why);  // nothing more can be computed
  // Waits for the workers. The transport and the engine have stopped before.
  void close();
  State state() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Call;
  struct Route;
  struct Model {
    const openai::Served* served = nullptr;
    EngineQueue* engine = nullptr;
    AnswerDefaults defaults;
  };
  using Action = void (Application::*)(Call&);

  static const std::vector<Route>& routes();
  const Route* find(Call& call) const;
  void check_access(const Route& route, const Call& call) const;
  void refuse(Call& call, const openai::Refusal& refusal);
  void guarded(Call& call, const std::function<void()>& work);
  Model model() const;  // Refusal unless ready
  void note_unknown(const Dialect& dialect, const boost::json::object& body);
  void check_name(const boost::json::object& body, const openai::Served& served) const;

  void preflight(Call& call);
  void page(Call& call);
  void live(Call& call);
  void ready(Call& call);
  void metrics(Call& call);
  void engine(Call& call);
  void models(Call& call);
  void one_model(Call& call);
  void answer(Call& call);
  void stored(Call& call);
  void forget(Call& call);
  void words(Call& call);

  void watch_silence();

  const Options options_;
  const Clock::time_point started_ = Clock::now();
  const int64_t started_unix_;
  Metrics metrics_;
  ResponseStore responses_;

  mutable std::mutex mutex_;
  State state_ = State::kLoading;
  std::string reason_ = "the model is being loaded";
  Model model_;
  std::function<http::Server::Counters()> connections_;
  std::vector<std::weak_ptr<Exchange>> exchanges_;
  bool closing_ = false;
  std::set<std::string> noted_;  // fields that nobody knows
  std::condition_variable wake_;

  // Bodies are parsed and prompts tokenised apart from tokens on their way out: a long prompt delays no stream.
  WorkPool readers_{2}, writers_{2};
  std::thread silence_;
};

std::string_view state_name(Application::State state);  // "loading", "ready", "draining", "faulted"

}  // namespace weir
