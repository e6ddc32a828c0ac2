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

constexpr std::string_view kOpenAiFields[] = {"model",
                                              "messages",
                                              "prompt",
                                              "suffix",
                                              "echo",
                                              "best_of",
                                              "tools",
                                              "tool_choice",
                                              "parallel_tool_calls",
                                              "functions",
                                              "function_call",
                                              "response_format",
                                              "stream",
                                              "stream_options",
                                              "n",
                                              "stop",
                                              "stop_token_ids",
                                              "max_tokens",
                                              "max_completion_tokens",
                                              "min_tokens",
                                              "ignore_eos",
                                              "temperature",
                                              "top_p",
                                              "top_k",
                                              "min_p",
                                              "seed",
                                              "presence_penalty",
                                              "frequency_penalty",
                                              "repetition_penalty",
                                              "logit_bias",
                                              "logprobs",
                                              "top_logprobs",
                                              "reasoning_effort",
                                              "chat_template_kwargs",
                                              "add_generation_prompt",
                                              "continue_final_message",
                                              "skip_special_tokens",
                                              "modalities",
                                              "user",
                                              "metadata",
                                              "store",
                                              "service_tier",
                                              "safety_identifier",
                                              "prompt_cache_key"};
constexpr std::string_view kResponsesFields[] = {"model",
                                                 "input",
                                                 "instructions",
                                                 "tools",
                                                 "tool_choice",
                                                 "parallel_tool_calls",
                                                 "previous_response_id",
                                                 "store",
                                                 "text",
                                                 "reasoning",
                                                 "max_output_tokens",
                                                 "max_tool_calls",
                                                 "temperature",
                                                 "top_p",
                                                 "top_logprobs",
                                                 "include",
                                                 "metadata",
                                                 "stream",
                                                 "stream_options",
                                                 "truncation",
                                                 "background",
                                                 "conversation",
                                                 "prompt",
                                                 "user",
                                                 "service_tier",
                                                 "safety_identifier",
                                                 "prompt_cache_key",
                                                 "seed",
                                                 "stop",
                                                 "top_k",
                                                 "min_p"};
constexpr std::string_view kAnthropicFields[] = {
    "model",        "max_tokens",         "system",      "messages",      "tools",
    "tool_choice",  "stop_sequences",     "temperature", "top_k",         "top_p",
    "stream",       "thinking",           "metadata",    "output_config", "output_format",
    "container",    "context_management", "mcp_servers", "service_tier",  "cache_control",
    "inference_geo"};

constexpr Dialect kOpenAi{
    .reply = openai_reply, .error = openai_error, .fields = kOpenAiFields, .refused = openai::kRefusedFields};
constexpr Dialect kResponses{.reply = responses_reply, .error = openai_error, .fields = kResponsesFields};
constexpr Dialect kAnthropic{.reply = anthropic_reply, .error = anthropic_error, .fields = kAnthropicFields};

}  // namespace

const Dialect& dialect_of(std::string_view path) {
  if (path.starts_with("/v1/messages")) return kAnthropic;
  return path.starts_with("/v1/responses") ? kResponses : kOpenAi;
}

}  // namespace weir
