#include "server/dialect.h"

#include "server/anthropic.h"
#include "server/openai_reply.h"
#include "server/responses.h"

namespace weir {
namespace {

namespace json = boost::json;

std::unique_ptr<Reply> openai_reply(const ReplyContext& context, json::object body) {
  return std::make_unique<openai::ChunkedReply>(
      openai::parse_body(openai::endpoint_of(context.path).value(), std::move(body), context.defaults), context.served);
}

std::unique_ptr<Reply> responses_reply(const ReplyContext& context, json::object body) {
  return responses::make_reply(std::move(body), context.served, context.responses, context.defaults);
}

std::unique_ptr<Reply> anthropic_reply(const ReplyContext& context, json::object body) {
  return anthropic::make_reply(std::move(body), context.served, context.defaults);
}

json::object openai_error(const openai::Refusal& refusal) { return refusal.body(); }

json::object anthropic_error(const openai::Refusal& refusal) {
  return anthropic::error_object(refusal.status(), refusal.what());
}

constexpr Dialect kOpenAi{.reply = openai_reply, .error = openai_error};
constexpr Dialect kResponses{.reply = responses_reply, .error = openai_error};
constexpr Dialect kAnthropic{.reply = anthropic_reply, .error = anthropic_error};

}  // namespace

const Dialect& dialect_of(std::string_view path) {
  if (path.starts_with("/v1/messages")) return kAnthropic;
  return path.starts_with("/v1/responses") ? kResponses : kOpenAi;
}

}  // namespace weir
