// POST /tokenize, /detokenize, /apply_template: a model's words and ids, for clients that count or look.
#pragma once

#include <boost/json/object.hpp>

#include "server/openai.h"

namespace weir {

// All throw openai::Refusal.

// {"prompt" or "content": TEXT} or a chat's body -> {"count", "max_model_len", "tokens"}. In a text markers count;
// "add_special_tokens" (true): with what the model's files put around texts.
boost::json::object tokenize(const boost::json::object& body, const openai::Served& served);
// {"tokens": [IDS]} -> {"prompt", "content"}, both the text.
boost::json::object detokenize(const boost::json::object& body, const openai::Served& served);
// A chat's body -> {"prompt": the text that the model sees}.
boost::json::object apply_template(const boost::json::object& body, const openai::Served& served);

}  // namespace weir
