// One streamed answer of the OpenAI API, measured as its events arrive. Does not know the network.
#pragma once

#include <boost/json/object.hpp>
#include <chrono>
#include <string>
#include <string_view>

#include "cli/load_sse.h"
#include "cli/load_statistics.h"

namespace weir::cli {

// Counts as vLLM's benchmark does: the first chunk with text ends TTFT, each later one adds the time since the chunk
// before it to the inter-token latencies, whatever number of tokens it holds; chunks that arrive in one read have the
// same time. The count of tokens is that of the server's usage. Chunks without text (the role, the end, usage) have no
// time.
class LoadAnswer {
 public:
  using Clock = std::chrono::steady_clock;

  // `due`: where times are measured from. `keep_text`: for answers that a later request repeats.
  LoadAnswer(Clock::time_point due, bool keep_text);
  LoadAnswer(const LoadAnswer&) = delete;
  LoadAnswer& operator=(const LoadAnswer&) = delete;

  // Bytes of the body that arrived at `at`. Errors of their content end up in the record; then false.
  bool feed(std::string_view bytes, Clock::time_point at);
  // The body is complete: what it adds up to.
  LoadRecord finish();
  // The request came to nothing before or during the answer.
  LoadRecord failed(LoadFailure failure, std::string_view message, int status = 0);

  const std::string& text() const { return text_; }

 private:
  void event(std::string_view data);
  void chunk(const boost::json::object& object);
  void text_arrived();

  Clock::time_point due_, now_, last_;
  bool keep_text_;
  SseParser parser_;
  LoadRecord record_;
  std::string text_;
  int64_t chunks_ = 0;                    // with text
  bool finished_ = false, done_ = false;  // finish_reason has come; [DONE] has
};

// The message of an error body ({"error": {"message": ...}}, {"message": ...}), or the beginning of the body itself.
std::string error_message(std::string_view body);

}  // namespace weir::cli
