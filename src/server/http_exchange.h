// The answer to one request between the handler, on any thread, and the connection that sends it: framing, the bytes
// that wait, and who has left. No network here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "server/http.h"

namespace weir::http {

// What the request says about the form of its answer.
struct Framing {
  bool body = true;     // not after HEAD
  bool chunked = true;  // HTTP/1.1; a stream of HTTP/1.0 lasts until the connection is closed
  bool keep_alive = true;
};

class Exchange {
 public:
  // `wake` is called, with a lock held, when take() has returned kNothing and there is news; it must only post.
  Exchange(Framing framing, int64_t stream_buffer, std::function<void()> wake);

  // The handler's side: as Response says. dropped(): the last reference to the Response has gone.
  void send(int status, std::string_view content_type, std::string body, const Headers& headers);
  void start(int status, std::string_view content_type, const Headers& headers);
  bool write(std::string_view bytes);
  void finish();
  void on_gone(std::function<void()> call);
  void dropped(const std::function<std::string()>& body);  // of the 500

  // The connection's side, on one thread at a time.
  enum class Next { kBytes, kNothing, kComplete, kCut };
  Next take(std::string& out);  // kBytes: all that waits; `out` must be empty
  void sent(size_t bytes);      // of what was taken
  bool overflowed() const;
  bool keep_alive() const;
  void close_after();  // no request is served after this one
  void probe();        // the client has ended its side: has it gone, or is it only done with sending?
  void
  leave() noexcept;  // the connection has ended, or the answer is complete: nothing is called or taken from here on

 private:
  enum class State { kEmpty, kStreaming, kComplete, kCut };
  void append_head(int status, std::string_view content_type, const Headers& headers, const int64_t* length);
  void wake_locked();

  const int64_t stream_buffer_;
  mutable std::mutex mutex_;
  std::function<void()> wake_, gone_call_;
  Framing framing_;
  State state_ = State::kEmpty;
  std::string waiting_;
  size_t taken_ = 0;  // and not yet sent
  bool sleeping_ = false, gone_ = false, overflowed_ = false, probed_ = false;
};

// Tells the exchange when the last reference to it is dropped; `body` of the 500 that an unanswered request gets.
std::shared_ptr<Response> make_response(std::shared_ptr<Exchange> exchange, std::function<std::string()> body);

}  // namespace weir::http
