#include <boost/json/serialize.hpp>
#include <limits>

#include "server/anthropic.h"
#include "server/body_fields.h"
#include "server/chat_builder.h"

namespace weir::anthropic {
namespace {

namespace json = boost::json;
using openai::refuse;

constexpr int64_t kMostTokens = int64_t{1} << 32;

std::string type_of(const JsonObject& block) { return block.string("type"); }

[[noreturn]] void refuse_block(const JsonObject& block) {
  refuse(concat(block.path(), ".type"),
         concat("blocks of type ", printable(type_of(block), 40), " are not supported here: this server reads text"));
}

// A string, or text blocks with line breaks between them; absent is empty.
std::string text_of(const JsonObject& from, std::string_view name) {
  if (!from.has(name)) return {};
  if (from.raw().at(name).is_string()) return from.string(name);
  std::string out;
  bool first = true;
  openai::each_object(from, name, [&](const JsonObject& block) {
    if (type_of(block) != "text") refuse_block(block);
    if (!std::exchange(first, false)) out += '\n';
    out += block.string("text");
  });
  return out;
}

void add_user_blocks(const JsonObject& message, ChatBuilder& chat) {
  std::optional<std::string> text;
  const auto say = [&] {
    if (text) chat.say("user", *text);
    text.reset();
  };
  openai::each_object(message, "content", [&](const JsonObject& block) {
    const std::string type = type_of(block);
    if (type == "text") {
      text = text ? concat(*text, "\n", block.string("text")) : block.string("text");
    } else if (type == "tool_result") {
      say();
      const std::string_view prefix = block.boolean_or("is_error", false) ? "Error: " : "";
      chat.result(block.string("tool_use_id"), concat(prefix, text_of(block, "content")));
    } else {
      refuse_block(block);
    }
  });
  say();
}

void add_assistant_blocks(const JsonObject& message, ChatBuilder& chat) {
  openai::each_object(message, "content", [&](const JsonObject& block) {
    const std::string type = type_of(block);
    if (type == "text") {
      chat.answer(block.string("text"));
    } else if (type == "thinking") {
      chat.think(block.string("thinking"));
    } else if (type == "tool_use") {
      chat.call(block.string("id"), block.string("name"), json::serialize(block.object("input").raw()));
    } else if (type != "redacted_thinking") {
      refuse_block(block);
    }
  });
}

json::array messages_of(const JsonObject& body) {
  ChatBuilder chat;
  if (body.has("system")) chat.say("system", text_of(body, "system"));
  std::string last;
  openai::each_object(body, "messages", [&](const JsonObject& message) {
    last = message.string("role");
    const json::value* content = message.raw().if_contains("content");
    if (content == nullptr || !(content->is_string() || content->is_array())) {
      message.fail_field("content", "a string or an array of blocks");
    }
    if (last == "user") {
      if (content->is_string()) {
        chat.say("user", content->get_string());
      } else {
        add_user_blocks(message, chat);
      }
    } else if (last == "assistant") {
      if (content->is_string()) {
        chat.answer(content->get_string());
      } else {
        add_assistant_blocks(message, chat);
      }
    } else if (last == "system") {
      chat.say("system", text_of(message, "content"));
    } else {
      message.fail_field("role", "user, assistant or system");
    }
  });
  if (last.empty()) refuse("messages", "expected at least one, found none");
  if (last == "assistant") refuse("messages", "expected the user's at the end: answers can't be continued");
  return chat.take();
}

json::array tools_of(const JsonObject& body) {
  static constexpr std::string_view kStrict[] = {"strict"};
  json::array tools;
  openai::each_object(body, "tools", [&](const JsonObject& tool) {
    if (tool.string_or("type", "custom") != "custom") {
      refuse(concat(tool.path(), ".type"),
             concat("this server has no tools of its own, found ", printable(tool.string("type"), 40)));
    }
    openai::refuse_fields(tool, kStrict);
    json::object function{{"name", tool.string("name")}, {"description", tool.string_or("description", "")}};
    function["parameters"] = tool.object("input_schema").raw();
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  });
  return tools;
}

void add_tool_choice(const JsonObject& choice, json::object& chat) {
  const std::string type = type_of(choice);
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    chat["tool_choice"] = openai::choice_of_tool(choice, chat);
  } else {
    choice.fail_field("type", "auto, any, tool or none");
  }
  if (choice.boolean_or("disable_parallel_tool_use", false)) chat["parallel_tool_calls"] = false;
}

Thinking add_thinking(const JsonObject& body, json::object& chat) {
  Thinking thinking = Thinking::kHidden;
  if (const std::optional<JsonObject> given = body.object_if("thinking")) {
    const std::string type = type_of(*given);
    if (type == "enabled") {
      given->integer("budget_tokens", 1, kMostTokens);
    } else if (type != "adaptive" && type != "disabled") {
      given->fail_field("type", "enabled, adaptive or disabled");
    }
    const std::string display = given->string_or("display", "summarized");
    if (display != "summarized" && display != "omitted") given->fail_field("display", "summarized or omitted");
    if (type != "disabled") thinking = display == "omitted" ? Thinking::kOmitted : Thinking::kShown;
  }
  const bool on = thinking != Thinking::kHidden;
  chat["chat_template_kwargs"] = {{"thinking", on}, {"enable_thinking", on}};
  return thinking;
}

void add_effort(const JsonObject& body, json::object& chat) {
  const std::optional<JsonObject> config = body.object_if("output_config");
  if (!config) return;
  static constexpr std::string_view kUnsupported[] = {"format"};
  openai::refuse_fields(*config, kUnsupported);
  if (!config->has("effort")) return;
  const std::string effort = config->string("effort");
  if (effort != "low" && effort != "medium" && effort != "high" && effort != "xhigh" && effort != "max") {
    config->fail_field("effort", "low, medium, high, xhigh or max");
  }
  chat["reasoning_effort"] = effort;
}

Messages parse(const JsonObject& body, const SamplingOptions& defaults, Purpose purpose) {
  static constexpr std::string_view kUnsupported[] = {"mcp_servers", "container", "output_format"};
  openai::refuse_fields(body, kUnsupported);
  Messages out;
  if (purpose == Purpose::kAnswer) out.max_tokens = body.integer("max_tokens", 1, kMostTokens);
  body.number_or("temperature", 0, 0, 1);
  body.integer_or("top_k", 0, 0, std::numeric_limits<int32_t>::max());
  if (const std::optional<JsonObject> metadata = body.object_if("metadata")) metadata->string_or("user_id", "");

  json::object chat{{"messages", messages_of(body)}};
  static constexpr std::string_view kSame[] = {"model", "temperature", "top_k", "top_p", "stream"};
  openai::copy_fields(body, kSame, chat);
  if (body.has("tools")) chat["tools"] = tools_of(body);
  if (const std::optional<JsonObject> choice = body.object_if("tool_choice")) add_tool_choice(*choice, chat);
  out.thinking = add_thinking(body, chat);
  add_effort(body, chat);
  out.body = openai::parse_body(openai::Endpoint::kChat, std::move(chat), defaults);
  out.body.stop = openai::stops_of(body, "stop_sequences");
  return out;
}

}  // namespace

Messages parse_messages(json::object body, const SamplingOptions& defaults, Purpose purpose) {
  try {
    return parse(JsonObject(openai::kPlace, "", std::move(body)), defaults, purpose);
  } catch (const Error& error) {
    throw openai::Refusal::of(error);
  }
}

}  // namespace weir::anthropic
