// Logprobs as OpenAI's objects, for answers at once or piece by piece.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <memory>
#include <span>

#include "server/answer.h"
#include "server/openai.h"

namespace weir::openai {

// [{token, logprob, bytes, top_logprobs}]
boost::json::array logprob_entries(const Tokenizer& tokenizer, std::span<const TokenLogprob> tokens);

// The logprobs of one answer. `job` and `served` must outlive it.
class LogprobList {
 public:
  LogprobList(const Job& job, const Served& served);

  // Of the answer's tokens that have come since the last call; null when the request has not asked for logprobs.
  boost::json::value next(const Answer& answer);
  // Have any come?
  bool pending(const Answer& answer) const { return wanted_ && taken_ < answer.logprobs().size(); }

 private:
  boost::json::object chat(std::span<const TokenLogprob> tokens) const;
  boost::json::object completion(std::span<const TokenLogprob> tokens);

  const Served& served_;
  bool wanted_, is_chat_;
  size_t taken_ = 0;
  std::unique_ptr<AnswerStream> text_;  // of completions: finds out where tokens begin in the text,
  int64_t offset_ = 0;                  // in characters, as clients in Python count
};

}  // namespace weir::openai
