#include <boost/json/serialize.hpp>

#include <algorithm>
#include <charconv>
#include <limits>

#include "formats/json.h"
#include "server/body_fields.h"
#include "server/openai.h"
#include "text/thinking_effort.h"

namespace weir::openai {
namespace {

namespace json = boost::json;

constexpr int64_t kMostTokens = int64_t{1} << 32;

// Fields of this dialect, and of servers that extend it, which change the answer and have no counterpart here. Absent,
// null, false and empty values ask for nothing.
void refuse_unsupported(const JsonObject& body, Endpoint endpoint) {
  static constexpr std::string_view kChat[] = {"functions", "function_call", "continue_final_message", "echo"};
  static constexpr std::string_view kCompletions[] = {"suffix"};
  refuse_fields(body, kRefusedFields);
  refuse_fields(body, endpoint == Endpoint::kChat ? std::span<const std::string_view>(kChat) : kCompletions);
  if (!body.boolean_or("skip_special_tokens", true)) refuse("skip_special_tokens", "only true is supported");
  if (const json::value* modalities = body.raw().if_contains("modalities"); modalities && !modalities->is_null()) {
    if (json::serialize(*modalities) != R"(["text"])") refuse("modalities", R"(only ["text"] is supported)");
  }
}

// Must the content be a JSON object?
bool wants_json(const JsonObject& body, Endpoint endpoint) {
  const std::optional<JsonObject> format = body.object_if("response_format");
  if (!format) return false;
  const std::string type = format->string("type");
  if (type == "text") return false;
  if (type == "json_object" && endpoint == Endpoint::kChat) return true;
  const std::string_view why = type == "json_object"   ? "json_object is for chats only"
                               : type == "json_schema" ? "json_schema is not there yet; json_object is"
                                                       : "expected text or json_object";
  throw Refusal(concat(kPlace, ": field 'response_format.type': ", why, ", found ", printable(type, 40)),
                "response_format.type");
}

// What can't be had together with content that must be a JSON object.
void check_json(const Body& out) {
  if (!out.json_object) return;
  if (out.ignore_eos) refuse("ignore_eos", "not supported with response_format json_object, which ends the answer");
  if (out.sampling.min_tokens > 0) {
    refuse("min_tokens", "not supported with response_format json_object, which ends the answer");
  }
  if (out.call) refuse("tool_choice", "with response_format json_object only auto and none are supported");
}

// Any 64-bit integer, with sign or without.
uint64_t seed_of(const JsonObject& body, uint64_t fallback) {
  const json::value* given = body.raw().if_contains("seed");
  if (given == nullptr || given->is_null()) return fallback;
  if (given->is_uint64()) return given->get_uint64();
  return static_cast<uint64_t>(
      body.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
}

std::vector<std::pair<int32_t, float>> biases_of(const JsonObject& body) {
  std::vector<std::pair<int32_t, float>> biases;
  const std::optional<JsonObject> given = body.object_if("logit_bias");
  if (!given) return biases;
  for (const auto& [key, value] : given->raw()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      body.fail_field("logit_bias", "token ids as keys");
    }
    biases.emplace_back(id, static_cast<float>(given->number(key, -100, 100)));
  }
  return biases;
}

SamplingOptions sampling_of(const JsonObject& body, Endpoint endpoint, const SamplingOptions& defaults) {
  SamplingOptions out = defaults;
  const auto number = [&](std::string_view name, float& value, double least, double most) {
    value = static_cast<float>(body.number_or(name, static_cast<double>(value), least, most));
  };
  number("temperature", out.temperature, 0, 100);
  number("top_p", out.top_p, 0, 1);
  number("min_p", out.min_p, 0, 1);
  number("presence_penalty", out.presence_penalty, -2, 2);
  number("frequency_penalty", out.frequency_penalty, -2, 2);
  number("repetition_penalty", out.repetition_penalty, 0, 10);
  // -1 is another way to say "all".
  out.top_k = static_cast<int32_t>(
      std::max<int64_t>(0, body.integer_or("top_k", out.top_k, -1, std::numeric_limits<int32_t>::max())));
  out.seed = seed_of(body, out.seed);
  out.logit_bias = biases_of(body);
  out.min_tokens = body.integer_or("min_tokens", 0, 0, kMostTokens);
  if (endpoint == Endpoint::kCompletions) {
    out.top_logprobs = static_cast<int32_t>(body.integer_or("logprobs", -1, 0, kMaxTopLogprobs));
  } else {
    const bool wanted = body.boolean_or("logprobs", false);
    const int64_t top = body.integer_or("top_logprobs", 0, 0, kMaxTopLogprobs);
    if (top > 0 && !wanted) refuse("top_logprobs", "expected logprobs to be true, found false");
    out.top_logprobs = wanted ? static_cast<int32_t>(top) : -1;
  }
  return out;
}

void check_messages(const ChatRequest& chat) {
  if (chat.messages.empty()) throw Refusal(concat(kPlace, ": messages: expected at least one, found none"), "messages");
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    for (size_t k = 0; k < chat.messages[i].content.size(); ++k) {
      const ContentPart& part = chat.messages[i].content[k];
      if (part.kind == ContentPart::Kind::kText) continue;
      const std::string field = concat("messages[", i, "].content[", k, "]");
      throw Refusal(
          concat(kPlace, ": ", field, ": expected text, found ",
                 part.kind == ContentPart::Kind::kImage ? "an image" : part.text, ": this server reads text only"),
          field);
    }
  }
}

void check_tools(const JsonObject& body, const ChatRequest& chat) {
  if (chat.tools) {
    if (chat.tools->size() > kMaxTools) body.fail_field("tools", concat("at most ", kMaxTools));
    for (size_t i = 0; i < chat.tools->size(); ++i) {
      const json::object* tool = (*chat.tools)[i].if_object();
      const json::value* type = tool != nullptr ? tool->if_contains("type") : nullptr;
      const json::value* function = tool != nullptr ? tool->if_contains("function") : nullptr;
      const json::value* name =
          function != nullptr && function->is_object() ? function->get_object().if_contains("name") : nullptr;
      if (type == nullptr || *type != "function" || name == nullptr || !name->is_string()) {
        const std::string field = concat("tools[", i, "]");
        throw Refusal(concat(kPlace, ": ", field, R"(: expected {"type": "function", "function": {"name": ...}})"),
                      field);
      }
      const JsonObject fields(kPlace, concat("tools[", i, "].function"), function->get_object());
      if (name->get_string().empty()) fields.fail_field("name", "a string that is not empty");
      fields.string_or("description", "");
      fields.object_if("parameters");
      const json::value* strict = function->get_object().if_contains("strict");
      if (strict != nullptr && !says_nothing(*strict)) {
        const std::string field = concat("tools[", i, "].function.strict");
        throw Refusal(concat(kPlace, ": ", field, ": true is not there yet: arguments are not held to the schema"),
                      field);
      }
    }
  }
}

bool declares(const ChatRequest& chat, std::string_view name) {
  return chat.tools && std::ranges::any_of(*chat.tools, [&](const json::value& tool) {
           return std::string_view(tool.at("function").at("name").get_string()) == name;
         });
}

void choose_tool(const JsonObject& body, ChatRequest& chat, Body& out) {
  const bool tools = chat.tools && !chat.tools->empty();
  out.one_call = !body.boolean_or("parallel_tool_calls", true);
  const json::value* choice = body.raw().if_contains("tool_choice");
  if (choice == nullptr || choice->is_null()) return;
  if (!tools) chat.options.erase("tool_choice");
  if (*choice == "auto") return;
  if (*choice == "none") {
    chat.tools.reset();
    return;
  }
  if (*choice == "required") {
    if (!tools) refuse("tool_choice", "required, but there are no tools");
    out.call.emplace();
    return;
  }
  const json::object* object = choice->if_object();
  const json::value* type = object ? object->if_contains("type") : nullptr;
  const json::value* function = object ? object->if_contains("function") : nullptr;
  const json::value* name = function && function->is_object() ? function->get_object().if_contains("name") : nullptr;
  if (type == nullptr || *type != "function" || name == nullptr || !name->is_string()) {
    body.fail_field("tool_choice", R"(auto, none, required or {"type": "function", "function": {"name": ...}})");
  }
  out.call = std::string(name->get_string());
  if (out.call->empty() || !declares(chat, *out.call)) {
    throw Refusal(concat(kPlace, ": field 'tool_choice.function.name': expected one of the tools, found ",
                         printable(*out.call, 64)),
                  "tool_choice.function.name");
  }
}

void apply_effort(const JsonObject& body, ChatRequest& chat) {
  if (body.has("reasoning_effort") && !set_thinking_effort(body.string("reasoning_effort"), chat.options)) {
    body.fail_field("reasoning_effort", "none, minimal, low, medium, high, xhigh or max");
  }
}

ChatRequest chat_of(const JsonObject& body, Body& out) {
  json::object given;
  for (const std::string_view name :
       {"messages", "tools", "tool_choice", "response_format", "chat_template_kwargs", "add_generation_prompt"}) {
    if (const json::value* value = body.raw().if_contains(name)) given[name] = *value;
  }
  if (json::value* messages = given.if_contains("messages"); messages != nullptr && messages->is_array()) {
    for (json::value& message : messages->get_array()) {
      if (!message.is_object()) continue;
      json::value* role = message.get_object().if_contains("role");
      if (role != nullptr && *role == "developer") *role = "system";  // the newer word for it
    }
  }
  if (const json::value* options = given.if_contains("chat_template_kwargs"); options && options->is_object()) {
    // Would be markup in a place where words belong.
    if (options->get_object().contains("images")) refuse("chat_template_kwargs.images", "not supported");
  }
  ChatRequest chat = parse_chat_request(given, kPlace);
  check_messages(chat);
  check_tools(body, chat);
  choose_tool(body, chat, out);
  apply_effort(body, chat);
  return chat;
}

std::vector<int32_t> ids_of(const json::array& array, const std::string& field) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const json::value& id : array) {
    const int64_t* value = id.if_int64();
    if (value == nullptr || *value < 0 || *value > std::numeric_limits<int32_t>::max()) {
      const std::string where = concat(field, "[", ids.size(), "]");
      throw Refusal(concat(kPlace, ": ", where, ": expected a token id, found ", printable(json::serialize(id), 40)),
                    where);
    }
    ids.push_back(static_cast<int32_t>(*value));
  }
  return ids;
}

void add_prompts(const JsonObject& body, Body& out) {
  const json::value* prompt = body.raw().if_contains("prompt");
  if (prompt != nullptr && prompt->is_string()) {
    out.prompts.emplace_back(std::string(prompt->get_string()));
    return;
  }
  const json::array* array = prompt != nullptr ? prompt->if_array() : nullptr;
  if (array == nullptr || array->empty()) {
    body.fail_field("prompt", "a string, an array of strings, token ids, or an array of arrays of them");
  }
  if (array->front().is_number()) {
    out.prompts.emplace_back(ids_of(*array, "prompt"));
    return;
  }
  if (array->size() > static_cast<size_t>(kMaxChoices)) {
    body.fail_field("prompt", concat("at most ", kMaxChoices, " prompts"));
  }
  for (const json::value& one : *array) {
    const std::string field = concat("prompt[", out.prompts.size(), "]");
    if (one.is_string()) {
      out.prompts.emplace_back(std::string(one.get_string()));
    } else if (one.is_array()) {
      out.prompts.emplace_back(ids_of(one.get_array(), field));
    } else {
      throw Refusal(concat(kPlace, ": ", field, ": expected a string or an array of token ids"), field);
    }
  }
}

Body parse(Endpoint endpoint, const JsonObject& body, const SamplingOptions& defaults) {
  Body out;
  out.endpoint = endpoint;
  out.model = body.string_or("model", "");
  refuse_unsupported(body, endpoint);
  out.n = body.integer_or("n", 1, 1, kMaxChoices);
  if (body.integer_or("best_of", out.n, 1, kMaxChoices) != out.n) refuse("best_of", "only the value of n is supported");
  for (const std::string_view name : {"max_tokens", "max_completion_tokens"}) {
    if (body.has(name)) out.max_tokens = body.integer(name, 1, kMostTokens);
  }
  out.sampling = sampling_of(body, endpoint, defaults);
  out.stop = stops_of(body, "stop");
  for (const int64_t id : body.integer_or_list("stop_token_ids", 0, std::numeric_limits<int32_t>::max())) {
    out.stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  out.ignore_eos = body.boolean_or("ignore_eos", false);
  out.stream = body.boolean_or("stream", false);
  if (const std::optional<JsonObject> options = body.object_if("stream_options")) {
    if (!out.stream) refuse("stream_options", "expected stream to be true, found false");
    out.include_usage = options->boolean_or("include_usage", false);
  }
  out.json_object = wants_json(body, endpoint);
  if (endpoint == Endpoint::kChat) {
    out.chat = chat_of(body, out);
    check_json(out);
    return out;
  }
  out.prompt_field = "prompt";
  add_prompts(body, out);
  if (static_cast<int64_t>(out.prompts.size()) * out.n > kMaxChoices) {
    refuse("n", concat("expected at most ", kMaxChoices, " answers in all"));
  }
  out.echo = body.boolean_or("echo", false);
  if (out.echo && out.logprobs()) refuse("logprobs", "with echo not supported: the prompt has none here");
  return out;
}

}  // namespace

std::optional<Endpoint> endpoint_of(std::string_view path) {
  if (path == "/v1/chat/completions") return Endpoint::kChat;
  if (path == "/v1/completions") return Endpoint::kCompletions;
  return std::nullopt;
}

// Messages of Error are "PLACE: FIELD: expected ..." or "PLACE: field 'FIELD': expected ...".
Refusal Refusal::of(const Error& error) {
  if (const auto* refusal = dynamic_cast<const Refusal*>(&error)) return *refusal;
  const std::string_view message = error.what();
  std::string_view field = message.substr(0, std::min(message.find(": expected"), message.size()));
  if (field.size() == message.size()) return Refusal(error.what());
  if (const size_t colon = field.rfind(": "); colon != std::string_view::npos) field.remove_prefix(colon + 2);
  if (field.starts_with("field '") && field.ends_with('\'')) field = field.substr(7, field.size() - 8);
  if (field.find(' ') != std::string_view::npos) field = {};
  return Refusal(error.what(), std::string(field));
}

json::object Refusal::body() const {
  const auto text = [](const std::string& value) { return value.empty() ? json::value() : json::value(value); };
  return {{"error",
           {{"message", what()},
            {"type", status_ < 500 ? "invalid_request_error" : "server_error"},
            {"param", text(param_)},
            {"code", text(code_)}}}};
}

Body parse_body(Endpoint endpoint, json::object body, const SamplingOptions& defaults) {
  try {
    return parse(endpoint, JsonObject(kPlace, "", std::move(body)), defaults);
  } catch (const Error& error) {
    throw Refusal::of(error);
  }
}

}  // namespace weir::openai
