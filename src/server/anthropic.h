// Anthropic's dialect: POST /v1/messages and /v1/messages/count_tokens. https://docs.anthropic.com/en/api/messages
//
// A body is put into a chat of openai.h, so that sampling, stop strings, tools, rendering and tokenising are those of
// the other dialects. What differs from Anthropic's own service:
//  - thinking: "enabled" and "adaptive" turn the model's reasoning on, "disabled" and leaving it out turn it off, by
//    the options `thinking` and `enable_thinking` of its chat format; a format that knows neither reasons as it likes.
//    Reasoning that wasn't asked for is left out of the answer, though its tokens count. budget_tokens is checked and
//    bounds nothing: max_tokens does, for reasoning and answer together.
//  - A signature is the id of the message, and not checked when it comes back. redacted_thinking is skipped.
//  - max_tokens is cut to what the context has left; an answer that reaches that end stops for
//    "model_context_window_exceeded".
//  - Several text blocks of one message, or of one tool's result, become one text with line breaks between them. A
//    result with is_error begins with "Error: ".
//  - Prompts are cached whether cache_control is there or not, and nothing is counted as cache_creation_input_tokens.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "server/openai.h"
#include "server/reply.h"

namespace weir::anthropic {

// Of a block of the answer: all of it, without its text, not at all.
enum class Thinking { kShown, kOmitted, kHidden };

struct Messages {
  openai::Body body;  // without max_tokens
  int64_t max_tokens = 0;
  Thinking thinking = Thinking::kHidden;
};

enum class Purpose { kAnswer, kCount };  // bodies that only count have no max_tokens

// `defaults`: of fields that the body leaves out. openai::Refusal naming the field.
Messages parse_messages(boost::json::object body, const SamplingOptions& defaults = {},
                        Purpose purpose = Purpose::kAnswer);

// `served` must outlive it. openai::Refusal, also as openai::prepare has it.
std::unique_ptr<Reply> make_reply(boost::json::object body, const openai::Served& served,
                                  const SamplingOptions& defaults = {});

// {"input_tokens": N}, however long the prompt is.
boost::json::object count_tokens(boost::json::object body, const openai::Served& served);

// {"type": "error", "error": {type, message}}
boost::json::object error_object(int status, const std::string& message);
std::string error_body(int status, const std::string& message);

}  // namespace weir::anthropic
