// HTTP/1.1 on Boost.Beast and Asio coroutines, knowing nothing of models: connections, limits, streams of server-sent
// events with bounded buffers. The only header between the network and the rest; no Boost type in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weir::http {

struct Request {
  std::string method, path, query;                           // path percent-decoded; query as it came, without '?'
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::string peer;  // address, without port

  std::string_view header(std::string_view lower_case_name) const;  // "" when absent
};

using Headers = std::vector<std::pair<std::string, std::string>>;

// The answer to one request. Thread-safe; handlers may keep it and answer later from any thread. Either send() once, or
// start() with write()s and finish(). Dropped without an answer: 500 before start(), a cut connection after it.
class Response {
 public:
  virtual ~Response() = default;
  virtual void send(int status, std::string_view content_type, std::string body, Headers headers = {}) = 0;
  virtual void start(int status, std::string_view content_type, Headers headers = {}) = 0;  // chunked
  // False when the client has gone, or reads so slowly that Limits::stream_buffer is full; then it is cut off. One
  // write may be larger than the buffer when nothing else waits.
  virtual bool write(std::string bytes) = 0;
  virtual void finish() = 0;
  // Called once, on a network thread and under no lock, if the client goes away (or is cut off) before send() or
  // finish(); at once when it has gone already. Must not throw. A client that has only ended its own sending has not
  // gone.
  virtual void on_gone(std::function<void()> call) = 0;
};

struct Limits {
  int64_t body = int64_t{32} << 20;
  int64_t headers = int64_t{32} << 10;
  std::chrono::milliseconds header_time{10'000};  // from accept, or from the first byte of a later request
  std::chrono::milliseconds body_time{60'000};
  std::chrono::milliseconds idle_time{75'000};   // between requests of a connection
  std::chrono::milliseconds write_time{30'000};  // that a client may take nothing of what waits for it
  int64_t stream_buffer = int64_t{1} << 20;
  int64_t connections = 16'384;
};

// Errors that the transport itself answers (400, 408, 413, 431 ...) get their body from here.
using ErrorBody = std::function<std::string(int status, const std::string& message, std::string_view path)>;
// Called on a network thread; must not block for long.
using Handler = std::function<void(Request, std::shared_ptr<Response>)>;

class Server {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    uint16_t port = 8000;  // 0: any free one
    int threads = 2;
    Limits limits;
    Handler handler;
    ErrorBody error_body;
  };
  struct Counters {
    int64_t accepted = 0, open = 0, requests = 0, refused = 0, slow_readers = 0, timed_out = 0;
  };

  explicit Server(Options options);  // listens; Error naming host and port
  ~Server();                         // as stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  Counters counters() const;
  void close_listener();  // no new connections; idle ones are closed; those with an answer in progress go on
  // Waits until no answer is in progress, at most so long; false when some remain.
  bool drain(std::chrono::milliseconds limit);
  void stop();  // cuts all connections, ends the threads; not from a network thread

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir::http
