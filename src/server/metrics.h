// What the server counts, for GET /metrics. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_queue.h"
#include "server/http.h"
#include "server/prometheus.h"

namespace weir {

class Metrics {
 public:
  // What a worker has seen of an answer's tokens since its last report; all in seconds.
  struct Tokens {
    std::vector<double> first, between;  // from the request's arrival to a first token; from one token to the next
    double to_socket_seconds = 0;        // from the engine to the connection's buffer, of the one that waited longest
    void clear() {
      first.clear();
      between.clear();
    }
  };
  // A request that was answered to its end.
  struct Finished {
    double seconds = 0;  // since it arrived
    int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  };

  void responded(int status);
  void error(std::string_view kind);
  void client_gone();
  void request_started(double preparation_seconds);  // until the engine had it
  void tokens(const Tokens& tokens);
  void finished(const Finished& finished);

  void write(PrometheusText& out) const;

 private:
  static constexpr double kShort[] = {0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1, 1};
  static constexpr double kToken[] = {0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10};
  static constexpr double kLong[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800};

  mutable std::mutex mutex_;
  std::map<int, int64_t> responses_;
  std::map<std::string, int64_t, std::less<>> errors_;
  int64_t clients_gone_ = 0;
  Finished totals_;
  Histogram preparation_{kShort}, to_socket_{kShort}, between_{kToken}, first_{kLong}, whole_{kLong};
};

// Of the engine and of the transport.
void write_metrics(const EngineSnapshot& engine, PrometheusText& out);
void write_metrics(const http::Server::Counters& connections, PrometheusText& out);

}  // namespace weir
