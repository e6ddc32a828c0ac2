#include "text/chat.h"

#include <boost/json/serialize.hpp>

#include "base/error.h"
#include "formats/json.h"

namespace weir {
namespace {

namespace json = boost::json;

std::string found(const json::value& value) {
  switch (value.kind()) {
    case json::kind::object:
      return "an object";
    case json::kind::array:
      return "an array";
    default:
      return printable(json::serialize(value), 40);
  }
}

[[noreturn]] void fail_at(const std::string& where, std::string_view expected, const json::value& value) {
  fail(where, ": expected ", expected, ", found ", found(value));
}

// A field of an object; null and absent are the same.
const json::value* field(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value && !value->is_null() ? value : nullptr;
}

std::string string_of(const json::value& value, const std::string& where) {
  if (!value.is_string()) fail_at(where, "a string", value);
  return std::string(value.get_string());
}

std::string string_or(const json::object& object, std::string_view name, const std::string& where) {
  const json::value* value = field(object, name);
  return value ? string_of(*value, concat(where, ".", name)) : std::string();
}

const json::object& object_of(const json::value& value, const std::string& where) {
  if (!value.is_object()) fail_at(where, "an object", value);
  return value.get_object();
}

const json::array& array_of(const json::value& value, const std::string& where) {
  if (!value.is_array()) fail_at(where, "an array", value);
  return value.get_array();
}

ContentPart content_part(const json::value& value) {
  if (value.is_string()) return {.text = std::string(value.get_string())};
  const json::object* part = value.if_object();
  if (!part) return {.kind = ContentPart::Kind::kOther, .text = found(value)};
  const json::value* type = field(*part, "type");
  if (type && type->is_string() && (type->get_string() == "image" || type->get_string() == "image_url")) {
    return {.kind = ContentPart::Kind::kImage};
  }
  const json::value* text = field(*part, "text");
  if (text && text->is_string()) return {.text = std::string(text->get_string())};
  return {.kind = ContentPart::Kind::kOther, .text = type ? "a part of type " + found(*type) : found(value)};
}

std::vector<ContentPart> content_parts(const json::value& value) {
  if (!value.is_array()) return {content_part(value)};
  std::vector<ContentPart> out;
  for (const json::value& part : value.get_array()) out.push_back(content_part(part));
  return out;
}

ToolCall tool_call(const json::value& value, const std::string& where) {
  const json::object& call = object_of(value, where);
  ToolCall out;
  if (const json::value* id = field(call, "id")) {
    out.id = id->is_string() ? std::string(id->get_string()) : json::serialize(*id);
  }
  const json::value* nested = field(call, "function");
  const std::string at = nested ? where + ".function" : where;
  const json::object& function = nested ? object_of(*nested, at) : call;
  const json::value* name = field(function, "name");
  if (!name) fail(at, ".name: expected the name of the tool, found none");
  out.name = string_of(*name, at + ".name");
  if (const json::value* arguments = field(function, "arguments")) {
    if (arguments->is_string()) {
      out.arguments = std::string(arguments->get_string());
    } else if (arguments->is_object()) {
      out.arguments = arguments->get_object();
    } else {
      fail_at(at + ".arguments", "a string or an object", *arguments);
    }
  }
  return out;
}

ChatMessage message(const json::value& value, const std::string& where) {
  ChatMessage out;
  out.json = object_of(value, where);
  const json::value* role = field(out.json, "role");
  if (!role) fail(where, ".role: expected a string, found none");
  out.role = string_of(*role, where + ".role");
  if (const json::value* content = field(out.json, "content")) out.content = content_parts(*content);
  for (const std::string_view name : {"reasoning_content", "reasoning", "thinking"}) {
    if (out.reasoning.empty()) out.reasoning = string_or(out.json, name, where);
  }
  if (const json::value* calls = field(out.json, "tool_calls")) {
    for (const json::value& call : array_of(*calls, where + ".tool_calls")) {
      out.tool_calls.push_back(tool_call(call, concat(where, ".tool_calls[", out.tool_calls.size(), "]")));
    }
  }
  out.name = string_or(out.json, "name", where);
  for (const std::string_view name : {"tool", "name"}) {
    if (!out.tool && field(out.json, name)) out.tool = string_or(out.json, name, where);
  }
  for (const std::string_view name : {"tool_call_id", "id"}) {
    if (!out.tool_call_id && field(out.json, name)) out.tool_call_id = string_or(out.json, name, where);
  }
  if (const json::value* tools = field(out.json, "tools")) out.tools = array_of(*tools, where + ".tools");
  return out;
}

void merge_options(ChatRequest& request, const json::object& root, const std::string& file) {
  for (const std::string_view name : {"options", "chat_template_kwargs"}) {
    if (const json::value* options = field(root, name)) {
      for (const auto& [key, value] : object_of(*options, concat(file, ": ", name))) {
        request.options.insert_or_assign(key, value);
      }
    }
  }
  for (const std::string_view name : {"tool_choice", "response_format", "reasoning_effort"}) {
    const json::value* value = field(root, name);
    if (value && !request.options.contains(name)) request.options[name] = *value;
  }
  const json::value* tools = field(root, "tools");
  std::string where = file + ": tools";
  if (!tools && (tools = field(request.options, "tools"))) where = file + ": options.tools";
  if (tools) request.tools = array_of(*tools, where);
  request.options.erase("tools");
  if (const json::value* add = field(root, "add_generation_prompt")) {
    if (!add->is_bool()) fail_at(file + ": add_generation_prompt", "true or false", *add);
    request.add_generation_prompt = add->get_bool();
  }
}

}  // namespace

ChatRequest parse_chat_request(const json::value& value, const std::string& file) {
  ChatRequest request;
  const json::value* messages = &value;
  if (value.is_object()) {
    messages = field(value.get_object(), "messages");
    if (!messages) fail(file, ": messages: expected an array, found none");
    merge_options(request, value.get_object(), file);
  } else if (!value.is_array()) {
    fail_at(file, "an array of messages or an object with messages", value);
  }
  for (const json::value& part : array_of(*messages, file + ": messages")) {
    request.messages.push_back(message(part, concat(file, ": messages[", request.messages.size(), "]")));
  }
  return request;
}

void parse_tool_arguments(ChatRequest& request) {
  for (ChatMessage& message : request.messages) {
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      ToolCall& call = message.tool_calls[i];
      const auto* text = std::get_if<std::string>(&call.arguments);
      if (!text) continue;
      json::value parsed;
      try {
        parsed = parse_json(*text, "arguments");
      } catch (const Error&) {
        continue;  // the template gets the text
      }
      if (!parsed.is_object()) continue;
      json::object& given = message.json.at("tool_calls").as_array()[i].as_object();
      const json::value* nested = field(given, "function");
      json::object& function = nested ? given.at("function").as_object() : given;
      function["arguments"] = parsed;
      call.arguments = parsed.get_object();
    }
  }
}

void RenderedPrompt::add(std::string_view piece, bool markup) {
  if (piece.empty()) return;
  text += piece;
  segments.push_back({std::string(piece), markup});
}

}  // namespace weir
