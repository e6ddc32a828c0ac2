// OpenAI's dialect: bodies of /v1/chat/completions and /v1/completions into requests for the engine, and answers into
// response objects. No input or output: whoever has the bytes calls these.
//
// Fields that are not known are ignored, as OpenAI's servers do; those that are known, would change the answer and are
// not supported are refused by name.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "engine/model_text.h"
#include "engine/request.h"
#include "server/answer.h"

namespace weir::openai {

enum class Endpoint { kChat, kCompletions };
std::optional<Endpoint> endpoint_of(std::string_view path);

// A request that can't be served as it is.
class Refusal : public Error {
 public:
  explicit Refusal(const std::string& message, std::string param = {}, std::string code = {}, int status = 400)
      : Error(message), param_(std::move(param)), code_(std::move(code)), status_(status) {}
  // Of an Error that names a field in front of ": expected".
  static Refusal of(const Error& error);

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  boost::json::object body() const;  // {"error": {message, type, param, code}}

 private:
  std::string param_, code_;
  int status_;
};

inline constexpr int64_t kMaxChoices = 128;   // n
inline constexpr size_t kMaxStops = 16;       // stop strings,
inline constexpr size_t kMaxStopBytes = 256;  // each so long at most
inline constexpr size_t kMaxTools = 256;
inline constexpr int64_t kDefaultTokens = 16;  // max_tokens of completions; chats go on up to the context

// Fields of this dialect, and of servers that extend it, which change the answer and have no counterpart here: refused
// in every body.
inline constexpr std::string_view kRefusedFields[] = {"audio",
                                                      "web_search_options",
                                                      "use_beam_search",
                                                      "prompt_logprobs",
                                                      "include_stop_str_in_output",
                                                      "guided_json",
                                                      "guided_regex",
                                                      "guided_choice",
                                                      "guided_grammar",
                                                      "structured_outputs",
                                                      "json_schema",
                                                      "grammar",
                                                      "bad_words",
                                                      "logits_processors",
                                                      "truncate_prompt_tokens",
                                                      "allowed_token_ids"};

struct Body {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;
  ChatRequest chat;                                                      // kChat
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;  // kCompletions
  bool echo = false;
  int64_t n = 1;
  std::optional<int64_t> max_tokens;
  SamplingOptions sampling;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool json_object = false;         // the content must be one
  std::optional<std::string> call;  // the answer must call this tool; "": any
  bool one_call = false;            // and none after it
  bool stream = false, include_usage = false;
  // What the dialect calls them, for messages.
  std::string_view prompt_field = "messages", limit_field = "max_tokens";

  bool logprobs() const { return sampling.top_logprobs >= 0; }
};

// `defaults`: of fields that the body leaves out. Refusal naming the field.
Body parse_body(Endpoint endpoint, boost::json::object body, const SamplingOptions& defaults = {});

// What is served.
struct Served {
  const ModelText* text = nullptr;
  std::string name;         // for bodies that name no model
  std::string fingerprint;  // of build, model and settings
  int64_t vocab = 0;
  int64_t context = 0;               // the model's
  int64_t tokens = 0;                // that there are pages for
  std::vector<int64_t> stop_tokens;  // the configuration's
  int64_t most_answers = 0;          // that one body may ask for, since more could never be taken in; 0: any number
};

// A request rendered and tokenised.
struct Job {
  struct Prompt {
    RenderedPrompt rendered;  // kChat
    std::string text;         // kCompletions with echo
    int64_t tokens = 0;
  };
  Body body;
  std::vector<Prompt> prompts;
  std::vector<Request> requests;  // of each prompt n, one after the other; seeds count up from the body's
};

// Refusal: no chat format, a conversation that the template refuses, no or too many tokens, sampling out of range.
Job prepare(Body body, const Served& served);

// The answer to job.requests[index], to be fed with its tokens. Tool calls get the ids CALL_PREFIX0 ...
Answer answer_of(const Job& job, size_t index, const Served& served, std::string call_prefix);

struct ResponseHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
};

// `answers`: of all requests of the job, ended.
boost::json::object response(const Job& job, std::span<const Answer> answers, const Served& served,
                             const ResponseHead& head);

}  // namespace weir::openai
