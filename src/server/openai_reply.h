// Answers in OpenAI's dialect: one object, or a stream of chunks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/openai.h"
#include "server/openai_logprobs.h"
#include "server/reply.h"

namespace weir::openai {

// Chunks that, put together, are the answer that response() gives in one piece. A call of a tool that the token limit
// cuts has been sent as far as it went; response() leaves it out.
class ChunkedReply final : public Reply {
 public:
  // `served` must outlive it. Refusal as parse_body and prepare have it.
  ChunkedReply(Body body, const Served& served);

  Job& job() override { return job_; }
  std::string call_prefix(size_t index) const override;

  void begin(std::string& out) override;
  void add(size_t index, const Answer& answer, std::span<const ChatEvent> events, std::string& out) override;
  void end(std::span<const Answer> answers, std::string& out) override;
  void fault(std::span<const Answer> answers, const std::string& message, std::string& out) override;
  boost::json::object body(std::span<const Answer> answers) override;

 private:
  bool is_chat() const { return job_.body.endpoint == Endpoint::kChat; }
  // A chunk of one choice, {"delta": PART} in chats and {"text": PART} elsewhere, with the logprobs that have come.
  void chunk(size_t index, const Answer* answer, boost::json::value part, std::string_view finish_reason,
             std::string& out);
  void write(boost::json::array choices, boost::json::object more, std::string& out) const;

  const Served& served_;
  Job job_;
  ResponseHead head_;
  std::string prefix_;
  std::vector<LogprobList> logprobs_;  // by answer
};

}  // namespace weir::openai
