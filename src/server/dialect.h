// The dialects that the server speaks, by path.
#pragma once

#include <algorithm>
#include <boost/json/object.hpp>
#include <memory>
#include <span>
#include <string_view>

#include "server/exchange.h"
#include "server/response_store.h"

namespace weir {

// What a reply is made with; all outlive it.
struct ReplyContext {
  std::string_view path;
  const openai::Served& served;
  const SamplingOptions& defaults;  // of fields that bodies leave out
  ResponseStore& responses;
};

struct Dialect {
  // openai::Refusal when the body can't be answered.
  std::unique_ptr<Reply> (*reply)(const ReplyContext& context, boost::json::object body) = nullptr;
  ErrorObject error = nullptr;
  // Fields of bodies that mean something here, be it that they are refused, or nothing to any server (`user`).
  std::span<const std::string_view> fields;
  std::span<const std::string_view> refused = {};  // more of them

  bool knows(std::string_view field) const {
    return std::ranges::find(fields, field) != fields.end() || std::ranges::find(refused, field) != refused.end();
  }
};

// OpenAI's for every path that is nobody else's.
const Dialect& dialect_of(std::string_view path);

}  // namespace weir
