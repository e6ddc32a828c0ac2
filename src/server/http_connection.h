// One connection: a coroutine on a strand of its own that reads a request, hands it to the handler, sends the answer
// and begins again. Internal to the transport; with http_server.cpp all that includes Boost.Asio.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/http.h"
#include "server/http_exchange.h"
#include "server/http_request.h"

namespace weir::http {

namespace asio = boost::asio;
using Strand = asio::strand<asio::io_context::executor_type>;
using Tcp = asio::ip::tcp;
using Socket = asio::basic_stream_socket<Tcp, Strand>;
using UseTask = asio::use_awaitable_t<Strand>;
template <class T = void>
using Task = asio::awaitable<T, Strand>;

class Connection;

// What the connections of a server share. Outlives them.
class Core {
 public:
  explicit Core(Server::Options o) : options(std::move(o)) {}

  const Server::Options options;
  std::atomic<int64_t> accepted{0}, open{0}, requests{0}, refused{0}, slow_readers{0}, timed_out{0};

  bool add(const std::shared_ptr<Connection>& connection);  // false once closing
  void remove(Connection* connection);
  std::vector<std::shared_ptr<Connection>> connections();
  void close();
  bool closing() const { return closing_; }

  void begin_answer();
  void end_answer();
  bool wait_quiet(std::chrono::milliseconds limit);  // until no answer is in progress

 private:
  std::mutex mutex_;
  std::condition_variable quiet_;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections_;
  int64_t answers_ = 0;
  std::atomic<bool> closing_{false};
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Core& core, Socket socket) : core_(core), socket_(std::move(socket)) {}

  void start(bool refused);  // refused: one connection too many, which gets a 503
  // From any thread.
  void expire(int64_t now);  // nanoseconds of the steady clock: acts when the deadline has passed
  void wind_up();            // closes when idle, else after the answer in progress
  void cut();

 private:
  struct Wait {
    bool armed = false, ready = false;
  };

  Task<> run(bool refused);
  Task<bool> serve();  // a request; false: the connection ends
  Task<bool> read(RequestParser& parser);
  Task<bool> answer();
  Task<> refuse(const Refusal& refusal, std::string_view path, bool body);
  Task<> linger();
  Task<bool> receive(size_t at_most);
  Task<bool> flush();
  Task<bool> writable();
  Task<> event();

  void notify();
  void watch(Socket::wait_type type, Wait& wait);
  void watch_client();
  bool take_input(size_t at_most);
  void handle(RequestParser& parser);
  void end_exchange();
  std::string error_body(int status, const std::string& message, std::string_view path) const;
  void set_deadline(std::chrono::milliseconds after);
  void clear_deadline();
  void close();

  Core& core_;
  Socket socket_;
  std::optional<asio::async_result<UseTask, void()>::handler_type> waiter_;  // of event()
  bool notified_ = false;
  Wait readable_, writable_, broken_;
  std::string peer_, input_, output_;  // input_: received, not parsed
  std::shared_ptr<Exchange> exchange_;
  std::atomic<int64_t> deadline_{INT64_MAX};
  bool expired_ = false;  // the deadline has passed
  bool cut_ = false;      // the server wants it to end
  bool ended_ = false;    // the client has ended its side
  bool lost_ = false;     // the connection is broken
  bool idle_ = false;     // between requests
  bool fresh_ = true;     // before its first request
};

}  // namespace weir::http
