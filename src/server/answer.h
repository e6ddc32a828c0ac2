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
  int32_t piece = -1;                          // the piece of content that the token is part of; -1: of none
};

// A stretch of an answer in the order of its arrival, for dialects whose answers are lists of blocks or items.
struct AnswerPiece {
  enum class Kind { kReasoning, kContent, kCall };
  Kind kind = Kind::kContent;
  std::string text;      // of a call: the arguments' JSON
  std::string name, id;  // of a call
  bool whole = false;    // of a call: it has come to its end
};

class Answer {
 public:
  struct Options {
    std::vector<std::string> stop;  // looked for in content: not in reasoning, not in tool calls
    int64_t min_tokens = 0;         // content before so many tokens is not looked at
    bool logprobs = false;
    bool one_call = false;  // the answer ends behind its first tool call
  };
  Answer(std::unique_ptr<AnswerStream> stream, Options options)
      : stream_(std::move(stream)), options_(std::move(options)), stop_(options_.stop) {}

  // Adds to `events` what can be shown now. False: a stop string or the only call ended the answer, so the request
  // should be cancelled; what comes after that is ignored.
  bool push(const SampledToken& token, std::vector<ChatEvent>& events);
  // The request's end; the last event is kEnd.
  void end(const RequestEnd& end, std::vector<ChatEvent>& events);
  bool stopped() const { return stop_.matched() || called_; }
  const std::string* stop_string() const { return stop_.matched() ? &stop_.match() : nullptr; }  // that ended it

  // The message so far; complete, with its finish reason, after end().
  const ParsedMessage& message() const { return message_; }
  // The same as pieces, that follow each other; the last one may yet grow. A call that is cut is one of them.
  const std::vector<AnswerPiece>& pieces() const { return pieces_; }
  const std::vector<TokenLogprob>& logprobs() const { return logprobs_; }
  const RequestUsage& usage() const { return usage_; }   // of the request, after end()
  int64_t completion_tokens() const { return tokens_; }  // up to where it stopped; with the stop token
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void pass_on(std::vector<ChatEvent>& events);
  void content(std::string text, std::vector<ChatEvent>& events);
  void add_to_pieces(const ChatEvent& event);
  void tag_logprobs();

  std::unique_ptr<AnswerStream> stream_;
  Options options_;
  StopStrings stop_;
  ParsedMessage message_;
  std::vector<AnswerPiece> pieces_;
  std::vector<TokenLogprob> logprobs_;
  size_t tagged_ = 0;        // logprobs that belong to events that have come
  bool in_content_ = false;  // the last of these events was content
  std::vector<ChatEvent> parsed_;
  RequestUsage usage_;
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
  bool called_ = false;  // the only call has ended
};

}  // namespace weir
