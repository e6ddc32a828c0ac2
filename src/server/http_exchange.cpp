#include "server/http_exchange.h"

#include <charconv>
#include <ctime>
#include <exception>
#include <utility>

#include "base/error.h"

namespace weir::http {
namespace {

// All status lines begin so: bytes that may be sent before the answer is known.
constexpr std::string_view kVersion = "HTTP/1.1 ";

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

// RFC 9110, 5.6.7, whatever the locale.
std::string date() {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  const auto two = [](int n) { return concat(n / 10, n % 10); };
  return concat(kDays[tm.tm_wday], ", ", two(tm.tm_mday), " ", kMonths[tm.tm_mon], " ", tm.tm_year + 1900, " ",
                two(tm.tm_hour), ":", two(tm.tm_min), ":", two(tm.tm_sec), " GMT");
}

// A value can't end its line: what is in it may have come with the request.
void append_field(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) out += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view bytes) {
  char size[16];
  const auto end = std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr;
  out.append(size, end).append("\r\n").append(bytes).append("\r\n");
}

class ExchangeResponse final : public Response {
 public:
  ExchangeResponse(std::shared_ptr<Exchange> exchange, std::function<std::string()> body)
      : exchange_(std::move(exchange)), body_(std::move(body)) {}
  ~ExchangeResponse() override { exchange_->dropped(body_); }
  void send(int status, std::string_view content_type, std::string body, Headers headers) override {
    exchange_->send(status, content_type, std::move(body), headers);
  }
  void start(int status, std::string_view content_type, Headers headers) override {
    exchange_->start(status, content_type, headers);
  }
  bool write(std::string bytes) override { return exchange_->write(bytes); }
  void finish() override { exchange_->finish(); }
  void on_gone(std::function<void()> call) override { exchange_->on_gone(std::move(call)); }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const std::function<std::string()> body_;
};

}  // namespace

std::shared_ptr<Response> make_response(std::shared_ptr<Exchange> exchange, std::function<std::string()> body) {
  return std::make_shared<ExchangeResponse>(std::move(exchange), std::move(body));
}

Exchange::Exchange(Framing framing, int64_t stream_buffer, std::function<void()> wake)
    : stream_buffer_(stream_buffer), wake_(std::move(wake)), framing_(framing) {}

void Exchange::wake_locked() {
  if (std::exchange(sleeping_, false) && wake_) wake_();
}

void Exchange::append_head(int status, std::string_view content_type, const Headers& headers, const int64_t* length) {
  if (!probed_) waiting_ += kVersion;
  waiting_ += concat(status, " ", reason(status), "\r\n");
  append_field(waiting_, "Date", date());
  if (!content_type.empty()) append_field(waiting_, "Content-Type", content_type);
  for (const auto& [name, value] : headers) append_field(waiting_, name, value);
  const bool no_body = status == 204 || status == 304;
  if (no_body) framing_.body = false;
  if (length && !no_body) append_field(waiting_, "Content-Length", std::to_string(*length));
  if (!length && !no_body && framing_.chunked) append_field(waiting_, "Transfer-Encoding", "chunked");
  if (!length && framing_.body && !framing_.chunked) framing_.keep_alive = false;
  if (!framing_.keep_alive) append_field(waiting_, "Connection", "close");
  if (framing_.keep_alive && !framing_.chunked) append_field(waiting_, "Connection", "keep-alive");
  waiting_ += "\r\n";
}

void Exchange::send(int status, std::string_view content_type, std::string body, const Headers& headers) {
  std::function<void()> done;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  if (state_ != State::kEmpty || gone_) return;
  const auto length = static_cast<int64_t>(body.size());
  append_head(status, content_type, headers, &length);
  if (framing_.body) waiting_ += body;
  state_ = State::kComplete;
  done.swap(gone_call_);
  wake_locked();
}

void Exchange::start(int status, std::string_view content_type, const Headers& headers) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kEmpty || gone_) return;
  append_head(status, content_type, headers, nullptr);
  state_ = State::kStreaming;
  wake_locked();
}

bool Exchange::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming || gone_) return false;
  if (bytes.empty() || !framing_.body) return true;
  const size_t held = waiting_.size() + taken_;
  if (held > 0 && held + bytes.size() > static_cast<size_t>(stream_buffer_)) {
    state_ = State::kCut;
    overflowed_ = true;
    sleeping_ = true;  // the connection waits for its client, not for us
    wake_locked();
    return false;
  }
  if (framing_.chunked) {
    append_chunk(waiting_, bytes);
  } else {
    waiting_ += bytes;
  }
  wake_locked();
  return true;
}

void Exchange::finish() {
  std::function<void()> done;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming || gone_) return;
  if (framing_.body && framing_.chunked) waiting_ += "0\r\n\r\n";
  state_ = State::kComplete;
  done.swap(gone_call_);
  wake_locked();
}

void Exchange::on_gone(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kComplete) return;
    if (!gone_) {
      gone_call_.swap(call);
      return;
    }
  }
  call();
}

void Exchange::dropped(const std::function<std::string()>& body) {
  std::unique_lock lock(mutex_);
  if (state_ == State::kComplete || gone_) return;
  if (state_ == State::kEmpty) {
    lock.unlock();
    try {
      return send(500, "application/json", body(), {});
    } catch (const std::exception&) {
      lock.lock();  // not even that: cut
    }
  }
  state_ = State::kCut;
  wake_locked();
}

Exchange::Next Exchange::take(std::string& out) {
  const std::lock_guard lock(mutex_);
  if (overflowed_) return Next::kCut;
  if (!waiting_.empty()) {
    out.swap(waiting_);
    taken_ = out.size();
    return Next::kBytes;
  }
  if (state_ == State::kComplete) return Next::kComplete;
  if (state_ == State::kCut) return Next::kCut;
  sleeping_ = true;
  return Next::kNothing;
}

void Exchange::sent(size_t bytes) {
  const std::lock_guard lock(mutex_);
  taken_ -= bytes;
}

bool Exchange::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

bool Exchange::keep_alive() const {
  const std::lock_guard lock(mutex_);
  return framing_.keep_alive;
}

void Exchange::close_after() {
  const std::lock_guard lock(mutex_);
  framing_.keep_alive = false;
}

// A client that has closed its socket answers any byte with a reset; one that has only ended its own sending does not.
// The byte must change nothing: the beginning of every status line, or a leading zero of the next chunk's size.
void Exchange::probe() {
  const std::lock_guard lock(mutex_);
  if (probed_) return;
  if (state_ == State::kEmpty) waiting_ += kVersion;
  if (state_ == State::kStreaming && framing_.body && framing_.chunked) waiting_ += '0';
  probed_ = true;
}

void Exchange::leave() noexcept {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(gone_, true)) return;
    wake_ = nullptr;
    call.swap(gone_call_);
    std::string().swap(waiting_);
  }
  if (call) call();
}

}  // namespace weir::http
