// A server with small limits, for the tests of the transport.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "server/http.h"
#include "server/http_client.h"

namespace weir::http {

using namespace std::chrono_literals;
using Reply = std::shared_ptr<Response>;

inline std::string error_text(int status, const std::string& message, std::string_view path) {
  return concat("error ", status, " at '", path, "': ", message);
}

inline Server::Options test_options(Handler handler, Limits limits = {}) {
  return {.port = 0, .limits = limits, .handler = std::move(handler), .error_body = error_text};
}

inline std::string get(std::string_view target, std::string_view fields = "") {
  return concat("GET ", target, " HTTP/1.1\r\nHost: h\r\n", fields, "\r\n");
}

template <class Condition>
bool soon(Condition condition, std::chrono::milliseconds patience = 5s) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

// Hands the responses that a handler got to the test.
class Desk {
 public:
  Handler handler() {
    return [this](Request request, Reply reply) {
      const std::lock_guard lock(mutex_);
      asked_.emplace_back(std::move(request), std::move(reply));
      came_.notify_all();
    };
  }
  std::pair<Request, Reply> next() {
    std::unique_lock lock(mutex_);
    if (!came_.wait_for(lock, 30s, [this] { return !asked_.empty(); })) fail("no request came");
    auto out = std::move(asked_.front());
    asked_.erase(asked_.begin());
    return out;
  }
  bool empty() {
    const std::lock_guard lock(mutex_);
    return asked_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::pair<Request, Reply>> asked_;
};

inline void echo(Request request, Reply reply) {
  std::string body = concat(request.method, " ", request.path, " ", request.query, " ", request.body.size());
  reply->send(200, "text/plain", std::move(body));
}

}  // namespace weir::http
