#include "server/http_connection.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "base/error.h"

namespace weir::http {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kFirstRead = 4096;  // most requests without a prompt fit
constexpr size_t kBodyRead = 256 << 10;
constexpr size_t kReadAhead = 16 << 10;  // of requests behind the one that is being answered
// After the last answer the client's own bytes are read and dropped: closing on top of unread ones would reset the
// connection, and the client might never see the answer.
constexpr std::chrono::milliseconds kLinger{5'000};

bool would_block(const boost::system::error_code& code) {
  return code == asio::error::would_block || code == asio::error::try_again;
}

// Of a connection: written by us, not acknowledged by the client's system.
int unsent_bytes(int socket) {
  int bytes = 0;
  ::ioctl(socket, SIOCOUTQ, &bytes);
  return bytes;
}

// A machine that vanishes says nothing: without this, a long answer would be computed for it to the end.
void notice_dead_peers(int socket) {
  constexpr int kOn = 1, kIdleSeconds = 60, kIntervalSeconds = 10, kProbes = 3;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof kOn);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof kIdleSeconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &kIntervalSeconds, sizeof kIntervalSeconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
}

int64_t nanoseconds(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

}  // namespace

void Connection::start(bool refused) {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this(), refused]() -> Task<> { return self->run(refused); },
      [self = shared_from_this()](std::exception_ptr) {});
}

void Connection::expire(int64_t now) {
  if (deadline_ > now) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->deadline_ > nanoseconds(Clock::now())) return;  // it has been moved
    self->clear_deadline();
    self->expired_ = true;
    self->notify();
  });
}

void Connection::wind_up() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->exchange_) self->exchange_->close_after();
    if (self->idle_) self->cut_ = true;
    self->notify();
  });
}

void Connection::cut() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->cut_ = true;
    self->notify();
  });
}

Task<> Connection::run(bool refused) {
  try {
    boost::system::error_code code;
    const auto address = socket_.remote_endpoint(code).address();
    const bool mapped = address.is_v6() && address.to_v6().is_v4_mapped();
    peer_ = mapped ? asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string() : address.to_string();
    socket_.non_blocking(true);
    socket_.set_option(Tcp::no_delay(true));
    notice_dead_peers(socket_.native_handle());
    if (refused) {
      const Refusal refusal{503, "too many connections"};
      co_await refuse(refusal, "", true);
    } else {
      for (bool more = true; more;) more = co_await serve();
    }
  } catch (const std::exception&) {
    // No memory, or a connection that broke before it began: neither has anybody to be told.
  }
  close();
}

void Connection::close() {
  end_exchange();
  boost::system::error_code ignored;
  socket_.close(ignored);
  core_.remove(this);
}

// The only place where the coroutine sleeps. Whoever has news sets a flag and calls notify(); whoever sleeps looks at
// the flags again.
Task<> Connection::event() {
  if (!std::exchange(notified_, false)) {
    co_await asio::async_initiate<const UseTask, void()>([this](auto handler) { waiter_.emplace(std::move(handler)); },
                                                         UseTask());
    notified_ = false;
  }
}

void Connection::notify() {
  if (!waiter_) {
    notified_ = true;
    return;
  }
  auto waiter = std::move(*waiter_);
  waiter_.reset();
  std::move(waiter)();
}

void Connection::watch(Socket::wait_type type, Wait& wait) {
  if (std::exchange(wait.armed, true)) return;
  socket_.async_wait(type, [self = shared_from_this(), &wait](boost::system::error_code code) {
    wait.armed = false;
    wait.ready = !code;
    self->notify();
  });
}

void Connection::set_deadline(std::chrono::milliseconds after) {
  expired_ = false;
  deadline_ = nanoseconds(Clock::now() + after);
}

void Connection::clear_deadline() { deadline_ = INT64_MAX; }

// Never blocks; true when bytes have come.
bool Connection::take_input(size_t at_most) {
  const size_t old = input_.size();
  boost::system::error_code code;
  input_.resize(old + at_most);
  const size_t n = socket_.read_some(asio::buffer(input_.data() + old, at_most), code);
  input_.resize(old + n);
  readable_.ready = false;  // even if there is more: others get their turn
  if (code && !would_block(code)) {
    ended_ = true;
    lost_ = lost_ || code != asio::error::eof;
  }
  return n > 0;
}

Task<bool> Connection::receive(size_t at_most) {
  for (;;) {
    if (cut_ || expired_) co_return false;
    if (readable_.ready && take_input(at_most)) co_return true;
    if (ended_) co_return false;
    watch(Socket::wait_read, readable_);
    co_await event();
  }
}

// Until the socket takes more; false when the client takes nothing for too long, has gone, or is to be cut off. What
// counts is what the client takes from the system's buffer, of which a third must be free before a socket is writable.
Task<bool> Connection::writable() {
  const auto& limit = core_.options.limits.write_time;
  int unsent = unsent_bytes(socket_.native_handle());
  set_deadline(limit);
  for (writable_.ready = false; !writable_.ready;) {
    if (expired_) {
      const int left = unsent_bytes(socket_.native_handle());
      if (left < unsent) set_deadline(limit);
      unsent = left;
    }
    const bool slow = expired_ || (exchange_ && exchange_->overflowed());
    if (slow) ++core_.slow_readers;
    if (slow || cut_) co_return false;
    watch(Socket::wait_write, writable_);
    co_await event();
  }
  clear_deadline();
  co_return true;
}

// Sends output_; false as above.
Task<bool> Connection::flush() {
  for (size_t at = 0; at < output_.size();) {
    boost::system::error_code code;
    const size_t n = socket_.write_some(asio::buffer(output_.data() + at, output_.size() - at), code);
    at += n;
    if (n > 0 && exchange_) exchange_->sent(n);
    if (!code) continue;
    if (!would_block(code) || !co_await writable()) co_return false;
  }
  output_.clear();
  co_return true;
}

Task<> Connection::linger() {
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  set_deadline(kLinger);
  for (bool more = !ended_; more;) {
    input_.clear();
    more = co_await receive(kBodyRead);
  }
}

std::string Connection::error_body(int status, const std::string& message, std::string_view path) const {
  return core_.options.error_body ? core_.options.error_body(status, message, path) : message + "\n";
}

Task<> Connection::refuse(const Refusal& refusal, std::string_view path, bool body) {
  ++core_.refused;
  Exchange exchange({.body = body, .keep_alive = false}, 0, nullptr);
  exchange.send(refusal.status, "application/json", error_body(refusal.status, refusal.message, path), {});
  exchange.take(output_);
  if (co_await flush()) co_await linger();
}

// Reads until the request is whole; false when the connection ends, which a refused client has been told.
Task<bool> Connection::read(RequestParser& parser) {
  const Limits& limits = core_.options.limits;
  const bool fresh = std::exchange(fresh_, false);
  set_deadline(fresh ? limits.header_time : limits.idle_time);
  if (input_.empty()) {
    std::string().swap(input_);  // an idle connection holds no buffers
    std::string().swap(output_);
    idle_ = true;
    const bool begun = !core_.closing() && co_await receive(kFirstRead);
    idle_ = false;
    if (!begun) co_return false;
  }
  if (!fresh) set_deadline(limits.header_time);
  for (bool in_body = false;;) {
    input_.erase(0, parser.feed(input_));
    if (parser.refusal()) {
      const bool body = parser.request().method != "HEAD";
      co_await refuse(*parser.refusal(), parser.request().path, body);
      co_return false;
    }
    if (parser.done()) break;
    if (parser.header_done() && !std::exchange(in_body, true)) {
      if (parser.expects_continue() && input_.empty()) {
        output_ = "HTTP/1.1 100 Continue\r\n\r\n";
        if (!co_await flush()) co_return false;
      }
      set_deadline(limits.body_time);
    }
    if (co_await receive(in_body ? kBodyRead : kFirstRead)) continue;
    if (expired_) {
      ++core_.timed_out;
      const Refusal refusal{408, in_body ? "the request's body took too long" : "the request's header took too long"};
      co_await refuse(refusal, parser.request().path, true);
    }
    co_return false;
  }
  clear_deadline();
  if (input_.empty()) std::string().swap(input_);  // an answer may take long
  co_return true;
}

void Connection::handle(RequestParser& parser) {
  Request& request = parser.request();
  request.peer = peer_;
  exchange_ = std::make_shared<Exchange>(
      Framing{request.method != "HEAD", parser.http_1_1(), parser.keep_alive() && !core_.closing()},
      core_.options.limits.stream_buffer, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) asio::post(self->socket_.get_executor(), [self] { self->notify(); });
      });
  core_.begin_answer();
  ++core_.requests;
  const auto failed = [make = core_.options.error_body, path = request.path] {
    constexpr const char* kMessage = "the server has failed to answer";
    return make ? make(500, kMessage, path) : std::string(kMessage) + "\n";
  };
  const auto response = make_response(exchange_, failed);
  try {
    core_.options.handler(std::move(request), response);
  } catch (...) {
    exchange_->dropped(failed);
  }
}

void Connection::end_exchange() {
  const auto exchange = std::exchange(exchange_, nullptr);
  if (!exchange) return;
  exchange->leave();
  core_.end_answer();
}

// Listens for the end of the client's side, and keeps a little of what it sends ahead.
void Connection::watch_client() {
  if (ended_ || input_.size() >= kReadAhead) {
    watch(Socket::wait_error, broken_);
  } else {
    watch(Socket::wait_read, readable_);
  }
}

// Sends what the exchange gives until it is complete; false when the connection must end before.
Task<bool> Connection::answer() {
  for (;;) {
    if (cut_ || lost_ || broken_.ready) co_return false;
    const Exchange::Next next = exchange_->take(output_);
    if (next == Exchange::Next::kComplete) co_return true;
    if (next == Exchange::Next::kCut) {
      if (exchange_->overflowed()) ++core_.slow_readers;
      co_return false;
    }
    if (next == Exchange::Next::kBytes) {
      if (!co_await flush()) co_return false;
      continue;
    }
    if (readable_.ready && !ended_ && input_.size() < kReadAhead) {
      take_input(kReadAhead - input_.size());
      if (ended_) exchange_->probe();
      continue;
    }
    watch_client();
    co_await event();
  }
}

Task<bool> Connection::serve() {
  {
    RequestParser parser(core_.options.limits);
    if (!co_await read(parser)) co_return false;
    handle(parser);
  }
  const bool whole = co_await answer();
  const bool keep_alive = exchange_->keep_alive() && !core_.closing();
  end_exchange();
  if (!whole) {
    boost::system::error_code ignored;
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);  // what it has not read will not be sent
    co_return false;
  }
  if (!keep_alive) co_await linger();
  co_return keep_alive;
}

}  // namespace weir::http
