// Connections of `weir load` and what goes over them. Only for load_client.cpp: Asio is slow to compile, so that the
// network is one translation unit.
#pragma once

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/load_answer.h"
#include "cli/load_request.h"
#include "cli/load_system.h"

namespace weir::cli {

class LoadConnections {
 public:
  using Clock = LoadAnswer::Clock;

  // How an exchange went, as far as HTTP knows.
  struct Outcome {
    LoadFailure failure = LoadFailure::kNone;
    std::string message;
    int status = 0;
    std::string body;       // where no LoadAnswer takes it
    bool reusable = false;  // the connection
  };

  // `timeout`: of a request, from connecting to the end of its answer. Error: the name can't be resolved.
  LoadConnections(boost::asio::io_context& io, const LoadUrl& url, Clock::duration timeout)
      : io_(io), timeout_(timeout) {
    boost::system::error_code error;
    endpoints_ = Tcp::resolver(io_).resolve(url.host, url.port, error);
    if (error) fail(url.text(), ": ", error.message());
  }

  // Sends a request and reads its answer, over a connection that is idle or a new one. The body of an answer with
  // status 200 goes to `answer`, if there is one; how long that took, to `check`.
  boost::asio::awaitable<Outcome> exchange(const std::string& bytes, LoadAnswer* answer, LoadSelfCheck& check);
  // Ends all exchanges, those to come too, until there is allow().
  void cancel();
  void allow() { cancelled_ = false; }

 private:
  using Tcp = boost::asio::ip::tcp;
  static constexpr auto kTuple = boost::asio::as_tuple(boost::asio::use_awaitable);
  static constexpr size_t kReadBytes = size_t{64} << 10;
  static constexpr uint64_t kMostBody = uint64_t{256} << 20;  // of an answer

  struct Connection {
    explicit Connection(boost::asio::io_context& io) : socket(io), deadline(io) {}

    Tcp::socket socket;
    boost::asio::steady_timer deadline;
    boost::beast::flat_buffer buffer;
    bool heard = false;  // an answer to the present request has begun
    bool timed_out = false, cancelled = false;
  };

  boost::asio::awaitable<Outcome> attempt(Connection& connection, const std::string& bytes, LoadAnswer* answer,
                                          LoadSelfCheck& check);
  boost::asio::awaitable<Outcome> read_answer(Connection& connection, LoadAnswer* answer, LoadSelfCheck& check);
  static void watch(const std::shared_ptr<Connection>& connection, Clock::time_point deadline);

  boost::asio::io_context& io_;
  Clock::duration timeout_;
  Tcp::resolver::results_type endpoints_;
  std::vector<std::shared_ptr<Connection>> idle_;  // the one used last is used first
  std::unordered_set<Connection*> live_;           // with a request in progress
  bool cancelled_ = false;
};

inline void LoadConnections::cancel() {
  cancelled_ = true;
  for (Connection* connection : live_) {
    connection->cancelled = true;
    boost::system::error_code ignored;
    connection->socket.close(ignored);
  }
}

inline void LoadConnections::watch(const std::shared_ptr<Connection>& connection, Clock::time_point deadline) {
  connection->heard = connection->timed_out = connection->cancelled = false;
  connection->deadline.expires_at(deadline);
  connection->deadline.async_wait([connection, deadline](boost::system::error_code error) {
    // It may have been on its way when the request ended and the next one began.
    if (error || connection->deadline.expiry() != deadline) return;
    connection->timed_out = true;
    connection->socket.close(error);
  });
}

inline boost::asio::awaitable<LoadConnections::Outcome> LoadConnections::exchange(const std::string& bytes,
                                                                                  LoadAnswer* answer,
                                                                                  LoadSelfCheck& check) {
  const Clock::time_point deadline = Clock::now() + timeout_;
  for (;;) {
    if (cancelled_) co_return Outcome{LoadFailure::kCancelled, "cancelled"};
    const bool reused = !idle_.empty();
    std::shared_ptr<Connection> connection = reused ? idle_.back() : std::make_shared<Connection>(io_);
    if (reused) idle_.pop_back();
    watch(connection, deadline);
    live_.insert(connection.get());
    Outcome out = co_await attempt(*connection, bytes, answer, check);
    live_.erase(connection.get());
    connection->deadline.expires_at(Clock::time_point::max());  // cancels
    if (connection->cancelled) {
      co_return Outcome{LoadFailure::kCancelled, "cancelled"};
    }
    if (connection->timed_out) {
      co_return Outcome{LoadFailure::kTimeout,
                        concat("no complete answer within ", std::chrono::duration<double>(timeout_).count(), " s")};
    }
    // A server may close a connection while nothing is asked on it, which is noticed too late.
    if (reused && !connection->heard && out.failure == LoadFailure::kClosed) continue;
    if (out.reusable) idle_.push_back(std::move(connection));
    co_return out;
  }
}

inline boost::asio::awaitable<LoadConnections::Outcome> LoadConnections::attempt(Connection& connection,
                                                                                 const std::string& bytes,
                                                                                 LoadAnswer* answer,
                                                                                 LoadSelfCheck& check) {
  if (!connection.socket.is_open()) {
    const auto [error, endpoint] = co_await boost::asio::async_connect(connection.socket, endpoints_, kTuple);
    if (error) co_return Outcome{LoadFailure::kConnect, concat("connect: ", error.message())};
    boost::system::error_code ignored;
    connection.socket.set_option(Tcp::no_delay(true), ignored);
    connection.socket.non_blocking(true, ignored);
    ask_for_arrival_times(connection.socket.native_handle());
  }
  const auto [error, written] =
      co_await boost::asio::async_write(connection.socket, boost::asio::buffer(bytes), kTuple);
  // A server may refuse a request before it has read all of it: what it says comes first.
  Outcome out = co_await read_answer(connection, answer, check);
  if (error) out.reusable = false;
  co_return out;
}

inline boost::asio::awaitable<LoadConnections::Outcome> LoadConnections::read_answer(Connection& connection,
                                                                                     LoadAnswer* answer,
                                                                                     LoadSelfCheck& check) {
  boost::beast::http::response_parser<boost::beast::http::string_body> parser;
  parser.header_limit(64 << 10);
  parser.body_limit(kMostBody);
  parser.eager(true);
  boost::beast::flat_buffer& buffer = connection.buffer;
  std::string& body = parser.get().body();
  buffer.clear();
  while (!parser.is_done()) {
    const auto [waited] = co_await connection.socket.async_wait(Tcp::socket::wait_read, kTuple);
    if (waited) co_return Outcome{LoadFailure::kClosed, waited.message()};
    const Clock::time_point woke = Clock::now();
    const auto space = buffer.prepare(kReadBytes);
    const Arrival arrival =
        receive(connection.socket.native_handle(), {static_cast<char*>(space.data()), space.size()});
    if (arrival.size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (arrival.size < 0) co_return Outcome{LoadFailure::kClosed, std::strerror(errno)};
    const Clock::time_point at = Clock::now();
    buffer.commit(static_cast<size_t>(arrival.size));
    connection.heard |= arrival.size > 0;
    boost::system::error_code error;
    if (arrival.size == 0) {
      if (parser.got_some()) parser.put_eof(error);
      if (error || !parser.got_some()) {
        co_return Outcome{LoadFailure::kClosed, concat("the server closed the connection ",
                                                       parser.got_some() ? "within" : "without", " an answer")};
      }
    }
    while (buffer.size() > 0 && !parser.is_done() && !error) buffer.consume(parser.put(buffer.data(), error));
    if (error && error != boost::beast::http::error::need_more) {
      co_return Outcome{LoadFailure::kMalformed, concat("HTTP: ", error.message())};
    }
    if (answer == nullptr || !parser.is_header_done() || parser.get().result_int() != 200) continue;
    if (const std::string_view type = parser.get()[boost::beast::http::field::content_type];
        !type.starts_with("text/event-stream")) {
      co_return Outcome{LoadFailure::kMalformed, concat("expected a text/event-stream, found ", printable(type))};
    }
    const bool good = body.empty() || answer->feed(body, at);
    if (!body.empty()) {
      const std::chrono::nanoseconds since = arrival.stamp.count() > 0
                                                 ? std::chrono::system_clock::now().time_since_epoch() - arrival.stamp
                                                 : Clock::now() - woke;
      check.chunk_us.add(std::max(0.0, 1e-3 * static_cast<double>(since.count())));
      check.kernel_clock = arrival.stamp.count() > 0;
    }
    body.clear();
    if (!good) co_return Outcome{.status = 200};
  }
  Outcome out{.status = static_cast<int>(parser.get().result_int()), .body = std::move(body)};
  out.reusable = parser.get().keep_alive() && buffer.size() == 0;
  co_return out;
}

}  // namespace weir::cli
