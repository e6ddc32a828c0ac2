// The listener and the threads: everything that is one per server.
#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/http_connection.h"

namespace weir::http {
namespace {

using Acceptor = asio::basic_socket_acceptor<Tcp, Strand>;
using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Strand>;

constexpr int kBacklog = 4096;
constexpr int64_t kRefusedAtOnce = 128;  // connections beyond the limit that are told so; the rest is closed
// After a failed accept, most likely for want of file descriptors: the listener stays ready, so trying at once spins.
constexpr std::chrono::milliseconds kAcceptPause{50};

auto tuple_task() { return asio::as_tuple(UseTask()); }

}  // namespace

bool Core::add(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  if (closing_) return false;
  connections_.emplace(connection.get(), connection);
  ++open;
  return true;
}

void Core::remove(Connection* connection) {
  const std::lock_guard lock(mutex_);
  open -= static_cast<int64_t>(connections_.erase(connection));
}

std::vector<std::shared_ptr<Connection>> Core::connections() {
  std::vector<std::shared_ptr<Connection>> out;
  const std::lock_guard lock(mutex_);
  out.reserve(connections_.size());
  for (const auto& [_, weak] : connections_) {
    if (auto connection = weak.lock()) out.push_back(std::move(connection));
  }
  return out;
}

void Core::close() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
}

void Core::begin_answer() {
  const std::lock_guard lock(mutex_);
  ++answers_;
}

void Core::end_answer() {
  const std::lock_guard lock(mutex_);
  if (--answers_ == 0) quiet_.notify_all();
}

bool Core::wait_quiet(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return quiet_.wait_for(lock, limit, [this] { return answers_ == 0; });
}

class Server::Impl {
 public:
  explicit Impl(Options options)
      : core_(std::move(options)),
        strand_(asio::make_strand(io_)),
        acceptor_(strand_),
        sweep_(strand_),
        pause_(strand_) {
    listen();
    asio::co_spawn(strand_, accept(), asio::detached);
    asio::co_spawn(strand_, sweep(), asio::detached);
    const int threads = std::max(1, core_.options.threads);
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { io_.run(); });
  }
  ~Impl() { stop(); }

  const Core& core() const { return core_; }
  uint16_t port() const { return port_; }
  bool drain(std::chrono::milliseconds limit) { return core_.wait_quiet(limit); }

  void close_listener() {
    core_.close();
    asio::post(strand_, [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
    });
    for (const auto& connection : core_.connections()) connection->wind_up();
  }

  void stop() {
    const std::lock_guard lock(stop_mutex_);
    if (threads_.empty()) return;
    close_listener();
    for (const auto& connection : core_.connections()) connection->cut();
    asio::post(strand_, [this] {
      stopping_ = true;
      sweep_.cancel();
    });
    guard_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void listen() {
    const auto& [host, port] = std::pair(core_.options.host, core_.options.port);
    boost::system::error_code code;
    const auto found = Tcp::resolver(io_).resolve(host, std::to_string(port), Tcp::resolver::passive, code);
    if (!code && found.empty()) code = asio::error::host_not_found;
    for (const auto& entry : found) {
      const Tcp::endpoint endpoint = entry.endpoint();
      acceptor_.close(code);
      acceptor_.open(endpoint.protocol(), code);
      if (!code) acceptor_.set_option(asio::socket_base::reuse_address(true), code);
      if (!code && endpoint.address().is_v6()) {
        acceptor_.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), code);  // "::" takes IPv4 too
      }
      if (!code) acceptor_.bind(endpoint, code);
      if (!code) acceptor_.listen(kBacklog, code);
      if (!code) port_ = acceptor_.local_endpoint(code).port();
      if (!code) return;
    }
    fail("cannot listen on ", printable(host), ", port ", port, ": ", code.message());
  }

  Task<> accept() {
    while (!core_.closing()) {
      auto [code, socket] = co_await acceptor_.async_accept(asio::make_strand(io_), tuple_task());
      if (!code) {
        admit(std::move(socket));
      } else if (code != asio::error::operation_aborted) {
        pause_.expires_after(kAcceptPause);
        co_await pause_.async_wait(tuple_task());
      }
    }
  }

  void admit(Socket socket) {
    ++core_.accepted;
    const int64_t beyond = core_.open - core_.options.limits.connections;
    if (beyond >= kRefusedAtOnce) {
      ++core_.refused;
      return;
    }
    const auto connection = std::make_shared<Connection>(core_, std::move(socket));
    if (core_.add(connection)) connection->start(beyond >= 0);
  }

  // One look at all deadlines now and then, instead of a timer per connection that is moved with every request.
  Task<> sweep() {
    const Limits& limits = core_.options.limits;
    const auto shortest = std::min({limits.header_time, limits.body_time, limits.idle_time, limits.write_time});
    const auto period = std::clamp(shortest / 8, std::chrono::milliseconds(5), std::chrono::milliseconds(250));
    while (!stopping_) {
      sweep_.expires_after(period);
      co_await sweep_.async_wait(tuple_task());
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      for (const auto& connection : core_.connections()) {
        connection->expire(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
      }
    }
  }

  Core core_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_{io_.get_executor()};
  Strand strand_;  // of the members below
  Acceptor acceptor_;
  Timer sweep_, pause_;
  bool stopping_ = false;
  uint16_t port_ = 0;
  std::mutex stop_mutex_;
  std::vector<std::thread> threads_;
};

Server::Server(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;
uint16_t Server::port() const { return impl_->port(); }
void Server::close_listener() { impl_->close_listener(); }
bool Server::drain(std::chrono::milliseconds limit) { return impl_->drain(limit); }
void Server::stop() { impl_->stop(); }

Server::Counters Server::counters() const {
  const Core& core = impl_->core();
  return {.accepted = core.accepted,
          .open = core.open,
          .requests = core.requests,
          .refused = core.refused,
          .slow_readers = core.slow_readers,
          .timed_out = core.timed_out};
}

}  // namespace weir::http
