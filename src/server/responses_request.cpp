#include <boost/json/serialize.hpp>

#include "server/body_fields.h"
#include "server/chat_builder.h"
#include "server/responses.h"

namespace weir::responses {
namespace {

namespace json = boost::json;
using openai::refuse;

constexpr int64_t kMostTokens = int64_t{1} << 32;
constexpr size_t kMostMetadata = 16;  // pairs, as OpenAI has it

std::string type_of(const JsonObject& item) { return item.string("type"); }

// A string, or parts of text with `between` between them.
std::string text_of(const JsonObject& item, std::string_view name, std::string_view between) {
  const json::value* given = item.raw().if_contains(name);
  if (given != nullptr && given->is_string()) return item.string(name);
  std::string out;
  bool first = true;
  openai::each_object(item, name, [&](const JsonObject& part) {
    const std::string type = type_of(part);
    const bool refusal = type == "refusal";
    if (!refusal && type != "input_text" && type != "output_text" && type != "text") {
      refuse(concat(part.path(), ".type"),
             concat("parts of type ", printable(type, 40), " are not supported: this server reads text"));
    }
    if (!std::exchange(first, false)) out += between;
    out += part.string(refusal ? "refusal" : "text");
  });
  return out;
}

std::string reasoning_of(const JsonObject& item) {
  std::string out;
  for (const std::string_view name : {"content", "summary"}) {
    if (!item.has(name)) continue;
    openai::each_object(item, name, [&](const JsonObject& part) { out += part.string("text"); });
    if (!out.empty()) break;
  }
  return out;
}

void add_message(const JsonObject& item, ChatBuilder& chat) {
  const std::string role = item.string("role");
  if (role == "assistant") {
    chat.answer(text_of(item, "content", ""));
  } else if (role == "user" || role == "system") {
    chat.say(role, text_of(item, "content", "\n"));
  } else if (role == "developer") {
    chat.say("system", text_of(item, "content", "\n"));
  } else {
    item.fail_field("role", "user, assistant, system or developer");
  }
}

void add_item(const JsonObject& item, ChatBuilder& chat) {
  const std::string type = item.string_or("type", "message");
  if (type == "message") {
    add_message(item, chat);
  } else if (type == "function_call") {
    chat.call(item.string("call_id"), item.string("name"), item.string("arguments"));
  } else if (type == "function_call_output") {
    chat.result(item.string("call_id"), text_of(item, "output", "\n"));
  } else if (type == "reasoning") {
    chat.think(reasoning_of(item));
  } else {
    refuse(concat(item.path(), ".type"), concat("items of type ", printable(type, 40), " are not supported"));
  }
}

// Of the response that this one goes on from.
json::array items_before(const JsonObject& body, ResponseStore& store) {
  if (!body.has("previous_response_id")) return {};
  const std::string id = body.string("previous_response_id");
  const std::shared_ptr<const ResponseStore::Entry> entry = store.get(id);
  if (entry == nullptr) {
    throw openai::Refusal(concat(openai::kPlace, ": field 'previous_response_id': no response ", printable(id, 60),
                                 " is stored here (any more)"),
                          "previous_response_id", "previous_response_not_found");
  }
  return parse_json(entry->items, "stored items").as_array();
}

void add_input(const JsonObject& body, json::array& items) {
  const json::value* input = body.raw().if_contains("input");
  if (input != nullptr && input->is_string()) {
    items.push_back({{"type", "message"}, {"role", "user"}, {"content", *input}});
  } else if (input != nullptr && input->is_array()) {
    items.insert(items.end(), input->get_array().begin(), input->get_array().end());
  } else {
    body.fail_field("input", "a string or an array of items");
  }
}

// Items of the past have been through this once: only those of `input` can be refused.
json::array messages_of(const JsonObject& body, const json::array& items, size_t past) {
  ChatBuilder chat;
  if (body.has("instructions")) chat.say("system", body.string("instructions"));
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string path = i < past ? concat("previous[", i, "]") : concat("input[", i - past, "]");
    if (!items[i].is_object()) refuse(path, "expected an object");
    add_item(JsonObject(openai::kPlace, path, items[i].get_object()), chat);
  }
  json::array messages = chat.take();
  if (messages.empty()) refuse("input", "expected at least one item, found none");
  return messages;
}

json::array tools_of(const JsonObject& body) {
  static constexpr std::string_view kStrict[] = {"strict"};
  json::array tools;
  openai::each_object(body, "tools", [&](const JsonObject& tool) {
    if (type_of(tool) != "function") {
      refuse(concat(tool.path(), ".type"),
             concat("only functions are supported, found ", printable(type_of(tool), 40)));
    }
    openai::refuse_fields(tool, kStrict);
    json::object function{{"name", tool.string("name")}};
    if (tool.has("description")) function["description"] = tool.string("description");
    if (tool.has("parameters")) function["parameters"] = tool.object("parameters").raw();
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  });
  return tools;
}

void add_tool_choice(const JsonObject& body, json::object& chat) {
  if (!body.has("tool_choice")) return;
  const json::value& given = body.raw().at("tool_choice");
  if (given == "auto" || given == "none" || given == "required") {
    chat["tool_choice"] = given;
    return;
  }
  const json::object* choice = given.if_object();
  const json::value* type = choice != nullptr ? choice->if_contains("type") : nullptr;
  if (type == nullptr || *type != "function") body.fail_field("tool_choice", "auto, none, required or a function");
  chat["tool_choice"] = openai::choice_of_tool(body.object("tool_choice"), chat);
}

void add_text(const JsonObject& body, json::object& chat) {
  const std::optional<JsonObject> text = body.object_if("text");
  if (!text) return;
  if (text->string_or("verbosity", "medium") != "medium") text->fail_field("verbosity", "medium");
  const std::optional<JsonObject> format = text->object_if("format");
  if (!format) return;
  const std::string type = type_of(*format);
  if (type == "json_schema") refuse("text.format.type", "json_schema is not supported yet");
  if (type != "text" && type != "json_object") format->fail_field("type", "text or json_object");
  if (type != "text") chat["response_format"] = {{"type", type}};
}

void add_reasoning(const JsonObject& body, json::object& chat) {
  const std::optional<JsonObject> reasoning = body.object_if("reasoning");
  if (!reasoning) return;
  for (const std::string_view name : {"summary", "generate_summary"}) {
    const std::string summary = reasoning->string_or(name, "auto");
    if (summary != "auto" && summary != "concise" && summary != "detailed") {
      reasoning->fail_field(name, "auto, concise or detailed");
    }
  }
  if (!reasoning->has("effort")) return;
  const std::string effort = reasoning->string("effort");
  for (const std::string_view known : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    if (effort == known) chat["reasoning_effort"] = effort;
  }
  if (!chat.contains("reasoning_effort")) {
    reasoning->fail_field("effort", "none, minimal, low, medium, high, xhigh or max");
  }
}

void add_logprobs(const JsonObject& body, json::object& chat) {
  bool wanted = false;
  if (body.has("include")) {
    for (const std::string& what : body.strings("include")) {
      wanted |= what == "message.output_text.logprobs";
      if (what == "message.output_text.logprobs" || what == "reasoning.encrypted_content") continue;
      refuse("include", concat(printable(what, 60), " is not supported"));
    }
  }
  if (body.integer_or("top_logprobs", 0, 0, kMaxTopLogprobs) > 0 && !wanted) {
    refuse("top_logprobs", "expected include to have message.output_text.logprobs");
  }
  if (wanted) chat["logprobs"] = true;
}

json::object metadata_of(const JsonObject& body) {
  const std::optional<JsonObject> metadata = body.object_if("metadata");
  if (!metadata) return {};
  if (metadata->raw().size() > kMostMetadata) body.fail_field("metadata", concat("at most ", kMostMetadata, " pairs"));
  for (const auto& [key, value] : metadata->raw()) metadata->string(key);
  return metadata->raw();
}

json::object echo_of(const JsonObject& body, const openai::Body& parsed) {
  const auto given = [&](std::string_view name, json::value fallback) {
    return body.has(name) ? body.raw().at(name) : fallback;
  };
  json::object reasoning{{"effort", nullptr}, {"summary", nullptr}};
  if (const auto asked = body.object_if("reasoning")) {
    for (const auto& [key, value] : asked->raw()) reasoning[key] = value;
  }
  json::object text{{"format", {{"type", "text"}}}};
  if (const auto asked = body.object_if("text"); asked && asked->has("format"))
    text["format"] = asked->raw().at("format");
  return {{"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"max_tool_calls", given("max_tool_calls", nullptr)},
          {"metadata", metadata_of(body)},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", given("previous_response_id", nullptr)},
          {"reasoning", std::move(reasoning)},
          {"store", given("store", true)},
          {"temperature", given("temperature", static_cast<double>(parsed.sampling.temperature))},
          {"text", std::move(text)},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", json::array())},
          {"top_logprobs", given("top_logprobs", 0)},
          {"top_p", given("top_p", static_cast<double>(parsed.sampling.top_p))},
          {"truncation", "disabled"},
          {"user", given("user", nullptr)}};
}

Parsed parse_object(const JsonObject& body, ResponseStore& store, const SamplingOptions& defaults) {
  static constexpr std::string_view kUnsupported[] = {"background", "conversation", "prompt", "context_management"};
  openai::refuse_fields(body, kUnsupported);
  if (body.string_or("truncation", "disabled") != "disabled") body.fail_field("truncation", "disabled");
  body.number_or("temperature", 0, 0, 2);
  body.string_or("user", "");
  body.integer_or("max_tool_calls", 1, 1, kMostTokens);  // of tools that this server hasn't

  Parsed out;
  out.store = body.boolean_or("store", true);
  out.items = items_before(body, store);
  const size_t past = out.items.size();
  add_input(body, out.items);
  json::object chat{{"messages", messages_of(body, out.items, past)}};
  // The last four are not OpenAI's own, and mean what they mean in chats.
  static constexpr std::string_view kSame[] = {
      "model", "temperature", "top_p", "stream", "top_logprobs", "parallel_tool_calls",
      "seed",  "stop",        "top_k", "min_p"};
  openai::copy_fields(body, kSame, chat);
  if (body.has("tools")) chat["tools"] = tools_of(body);
  add_tool_choice(body, chat);
  add_text(body, chat);
  add_reasoning(body, chat);
  add_logprobs(body, chat);
  out.body = openai::parse_body(openai::Endpoint::kChat, std::move(chat), defaults);
  if (body.has("max_output_tokens")) out.body.max_tokens = body.integer("max_output_tokens", 1, kMostTokens);
  out.body.prompt_field = "input";
  out.body.limit_field = "max_output_tokens";
  out.echo = echo_of(body, out.body);
  return out;
}

}  // namespace

Parsed parse(json::object body, ResponseStore& store, const SamplingOptions& defaults) {
  try {
    return parse_object(JsonObject(openai::kPlace, "", std::move(body)), store, defaults);
  } catch (const Error& error) {
    throw openai::Refusal::of(error);
  }
}

}  // namespace weir::responses
