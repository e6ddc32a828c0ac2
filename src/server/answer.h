// One answer of a request as its tokens arrive: reasoning, content, tool calls and logprobs, up to a stop string. For
// whoever owns the text; the engine's thread only passes tokens on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model_text.h"
#include "engine/request.h"
#include "engine/stop_strings.h"

namespace weir {

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // likeliest first
};

class Answer {
 public:
  struct Options {
    std::vector<std::string> stop;  // looked for in content: not in reasoning, not in tool calls
    int64_t min_tokens = 0;         // content before so many tokens is not looked at
    bool logprobs = false;
  };
  Answer(std::unique_ptr<AnswerStream> stream, Options options)
      : stream_(std::move(stream)), options_(std::move(options)), stop_(options_.stop) {}

  // Adds to `events` what can be shown now. False: a stop string ended the answer, so the request should be cancelled;
  // what comes after that is ignored.
  bool push(const SampledToken& token, std::vector<ChatEvent>& events);
  // The request's end; the last event is kEnd.
  void end(const RequestEnd& end, std::vector<ChatEvent>& events);
  bool stopped() const { return stop_.matched(); }

  // The message so far; complete, with its finish reason, after end().
  const ParsedMessage& message() const { return message_; }
  const std::vector<TokenLogprob>& logprobs() const { return logprobs_; }
  const RequestUsage& usage() const { return usage_; }   // of the request, after end()
  int64_t completion_tokens() const { return tokens_; }  // up to the stop string; with the stop token
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void pass_on(std::vector<ChatEvent>& events);
  void content(std::string text, std::vector<ChatEvent>& events);

  std::unique_ptr<AnswerStream> stream_;
  Options options_;
  StopStrings stop_;
  ParsedMessage message_;
  std::vector<TokenLogprob> logprobs_;
  std::vector<ChatEvent> parsed_;
  RequestUsage usage_;
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
};

}  // namespace weir
