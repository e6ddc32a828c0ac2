// OpenAI's dialect of items: POST /v1/responses, GET and DELETE /v1/responses/{id}.
// https://platform.openai.com/docs/api-reference/responses
//
// A body is put into a chat of openai.h, so that sampling, tools, rendering and tokenising are those of the other
// dialects. What differs from OpenAI's own service:
//  - Reasoning is given in full, as reasoning_text; there are no summaries of it (reasoning.summary is accepted) and
//    nothing is encrypted. Of reasoning items that come back the text counts, else the summary.
//  - Stored responses are lost when the server ends, or when newer ones need the place. A response that failed is not
//    stored.
//  - Several text parts of one message, or of one tool's output, become one text with line breaks between them.
//  - Only functions are tools; conversations, background work and stored prompts are refused.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <string_view>

#include "server/openai.h"
#include "server/reply.h"
#include "server/response_store.h"

namespace weir::responses {

struct Parsed {
  openai::Body body;
  boost::json::object echo;  // the fields of the request that its response shows
  boost::json::array items;  // the conversation so far
  bool store = true;
};

// `defaults`: of fields that the body leaves out. `store` is asked for previous_response_id. openai::Refusal naming the
// field.
Parsed parse(boost::json::object body, ResponseStore& store, const SamplingOptions& defaults = {});

// `served` and `store` must outlive it. The answer is in the store once it has been written. openai::Refusal, also as
// openai::prepare has it.
std::unique_ptr<Reply> make_reply(boost::json::object body, const openai::Served& served, ResponseStore& store,
                                  const SamplingOptions& defaults = {});

openai::Refusal not_found(std::string_view id);           // 404, for GET and DELETE
boost::json::object deleted_object(std::string_view id);  // the answer to DELETE

}  // namespace weir::responses
