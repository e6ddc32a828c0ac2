// An HTTP request for an answer, in one dialect: a body in, requests for the engine, bytes out. No input or output
// here; whoever owns the connection calls these, on one thread at a time.
#pragma once

#include <boost/json/object.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/answer.h"
#include "server/openai.h"

namespace weir {

// Made by the dialects from a body: openai_reply.h, anthropic.h, responses.h. Owns the job. The caller submits
// job().requests to the engine, feeds one Answer each (openai::answer_of) and passes on what comes of it.
class Reply {
 public:
  virtual ~Reply() = default;

  virtual openai::Job& job() = 0;
  bool streams() { return job().body.stream; }
  // The ids of tool calls start with it: unique to this reply ("call_<random>_", Anthropic "toolu_<random>_").
  virtual std::string call_prefix(size_t index) const = 0;

  // Streaming: each appends whole server-sent events ("event: ...\ndata: ...\n\n"). begin() first, once; add() for new
  // events of answer `index`, its kEnd included; then, when all answers have ended, end(), or at a fault (an answer
  // ended with an error, the server ends) fault() in its place.
  virtual void begin(std::string& out) = 0;
  virtual void add(size_t index, const Answer& answer, std::span<const ChatEvent> events, std::string& out) = 0;
  virtual void end(std::span<const Answer> answers, std::string& out) = 0;
  virtual void fault(std::span<const Answer> answers, const std::string& message, std::string& out) = 0;
  // While nothing comes for a long time: clients ignore it.
  virtual void keep_alive(std::string& out) { out += ": keep-alive\n\n"; }

  // Not streaming: the whole answer. All answers have ended, none with an error.
  virtual boost::json::object body(std::span<const Answer> answers) = 0;
};

}  // namespace weir
