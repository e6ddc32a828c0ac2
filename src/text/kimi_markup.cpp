#include "text/kimi_markup.h"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "base/error.h"
#include "text/jinja_runtime.h"
#include "text/kimi_json.h"

namespace weir {
namespace {

namespace json = boost::json;

constexpr std::string_view kImagePlaceholder = "<|kimi_image_placeholder|>";

std::string dump_json(const json::value& value, std::string_view item, std::string_view key, bool sort) {
  jinja::Runtime runtime("json", {}, {});
  jinja::JsonStyle style{.sort_keys = sort};
  style.item_separator = jinja::Text(std::string(item), jinja::Origin::kValue);
  style.key_separator = jinja::Text(std::string(key), jinja::Origin::kValue);
  jinja::TextBuilder out;
  append_json(runtime, jinja::from_json(value), style, out);
  return out.take().bytes();
}

std::string compact_sorted(const json::value& value) { return dump_json(value, ",", ":", true); }

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string_view json_type(std::string_view value) {
  switch (value.empty() ? '\0' : value[0]) {
    case '"':
      return "string";
    case '{':
      return "object";
    case '[':
      return "array";
    case 't':
    case 'f':
      return "boolean";
    case 'n':
      return "null";
    default:
      return "number";
  }
}

// Options, checked.
struct Options {
  bool thinking = true, prefill = false;
  std::string effort, tool_choice, response_format;
  json::value schema;
  std::vector<std::string> images;
};

const json::value* option(const json::object& options, std::string_view name) {
  const json::value* value = options.if_contains(name);
  return value && !value->is_null() ? value : nullptr;
}

bool bool_option(const json::object& options, std::string_view name, bool fallback) {
  const json::value* value = option(options, name);
  if (!value) return fallback;
  if (!value->is_bool()) fail("options.", name, ": expected true or false");
  return value->get_bool();
}

// "x", or the type of {"type": "x"}.
std::string name_option(const json::object& options, std::string_view name) {
  const json::value* value = option(options, name);
  if (value && value->is_object()) value = option(value->get_object(), "type");
  if (!value) return "";
  if (!value->is_string()) fail("options.", name, ": expected a string or an object with a type");
  return std::string(value->get_string());
}

json::value schema_of(const json::object& options) {
  if (const json::value* schema = option(options, "response_schema")) return *schema;
  const json::value* format = option(options, "response_format");
  const json::value* outer = format && format->is_object() ? option(format->get_object(), "json_schema") : nullptr;
  if (!outer || !outer->is_object()) return outer ? *outer : json::value();
  for (const std::string_view name : {"schema", "json_schema"}) {
    if (const json::value* inner = outer->get_object().if_contains(name)) return *inner;
  }
  return *outer;
}

Options read_options(const json::object& given) {
  Options out;
  out.thinking = bool_option(given, "thinking", true);
  out.prefill = bool_option(given, "prefill", false);
  if (out.thinking) out.effort = name_option(given, "thinking_effort");
  if (!out.effort.empty() && out.effort != "low" && out.effort != "high" && out.effort != "max") {
    fail("options.thinking_effort: expected low, high or max, found ", printable(out.effort, 40));
  }
  out.tool_choice = name_option(given, "tool_choice");
  if (out.tool_choice == "function") out.tool_choice = "required";
  out.response_format = name_option(given, "response_format");
  if (out.response_format == "json_schema") out.schema = schema_of(given);
  if (const json::value* images = option(given, "images")) {
    if (!images->is_array()) fail("options.images: expected an array of strings");
    for (const json::value& image : images->get_array()) {
      if (!image.is_string()) fail("options.images: expected an array of strings");
      out.images.emplace_back(image.get_string());
    }
  }
  return out;
}

using Attributes = std::initializer_list<std::pair<std::string_view, std::string_view>>;

void begin_tag(RenderedPrompt& out, std::string_view tag) {
  out.add("<|open|>", true);
  out.add(tag, false);
}

void begin_attribute(RenderedPrompt& out, std::string_view key) {
  out.add(concat(" ", key), false);
  out.add("=\"", false);
}

void open_tag(RenderedPrompt& out, std::string_view tag, Attributes attributes = {}) {
  begin_tag(out, tag);
  for (const auto& [key, value] : attributes) {
    begin_attribute(out, key);
    out.add(replace_all(replace_all(std::string(value), "&", "&amp;"), "\"", "&quot;"), false);
    out.add("\"", false);
  }
  out.add("<|sep|>", true);
}

void close_tag(RenderedPrompt& out, std::string_view tag) {
  out.add("<|close|>", true);
  out.add(tag, false);
  out.add("<|sep|>", true);
}

class Renderer {
 public:
  explicit Renderer(const ChatRequest& request) : request_(request), options_(read_options(request.options)) {}

  RenderedPrompt render() {
    if (request_.tools && !request_.tools->empty()) declare_tools(*request_.tools, kToolsBody);
    if (!options_.effort.empty()) {
      system_message("thinking-effort", concat(kEffortBody, options_.effort, "`."));
    }
    const std::vector<Ordered> messages = sort_tool_results();
    for (size_t i = 0; i < messages.size(); ++i) {
      message(*messages[i].message, messages[i].tool, messages[i].index, i + 1 == messages.size());
    }
    if (prefilled_) return finish();
    if (options_.prefill) fail("options.prefill: expected a message of the assistant at the end");
    closing_messages();
    if (request_.add_generation_prompt) {
      open("message", {{"role", "assistant"}});
      open(options_.thinking ? "think" : "response");
    }
    return finish();
  }

 private:
  static constexpr std::string_view kToolsBody =
      "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";
  static constexpr std::string_view kMoreToolsBody =
      "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have access to all "
      "existing and extended tools.\nHere are the specs for the extended tools.\n\n```json\n";
  static constexpr std::string_view kEffortBody =
      "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
      "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=";
  static constexpr std::string_view kJsonBody =
      "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting.";

  // A message, the tool that its result is from when its call is known by id, and its place in the request.
  struct Ordered {
    const ChatMessage* message = nullptr;
    std::optional<std::string> tool;
    size_t index = 0;
    size_t call = 0;
  };

  // Results of tools in the order of their calls: each run of results, when all of its ids are those of the last calls.
  std::vector<Ordered> sort_tool_results() const {
    std::vector<Ordered> out;
    std::map<std::string, std::pair<size_t, std::string>> calls;  // by id; the first of equal ids
    for (size_t i = 0; i < request_.messages.size();) {
      const ChatMessage& now = request_.messages[i];
      if (now.role != "tool") {
        if (now.role == "assistant") {
          calls.clear();
          for (size_t k = 0; k < now.tool_calls.size(); ++k) {
            if (!now.tool_calls[k].id.empty())
              calls.emplace(now.tool_calls[k].id, std::pair(k, now.tool_calls[k].name));
          }
        }
        out.push_back({.message = &now, .index = i++});
        continue;
      }
      std::vector<Ordered> run;
      bool known = true;
      for (; i < request_.messages.size() && request_.messages[i].role == "tool"; ++i) {
        const ChatMessage& result = request_.messages[i];
        run.push_back({.message = &result, .tool = result.tool, .index = i});
        const auto call = result.tool_call_id ? calls.find(*result.tool_call_id) : calls.end();
        known = known && call != calls.end();
        if (!known) continue;
        run.back().call = call->second.first;
      }
      if (known) {
        for (Ordered& result : run) result.tool = calls.at(*result.message->tool_call_id).second;
        std::sort(run.begin(), run.end(), [](const Ordered& a, const Ordered& b) {
          return std::pair(a.call, a.index) < std::pair(b.call, b.index);
        });
      }
      out.insert(out.end(), run.begin(), run.end());
    }
    return out;
  }

  void message(const ChatMessage& given, const std::optional<std::string>& tool, size_t index, bool last) {
    if (given.role == "system" && !given.tools.empty()) return declare_tools(given.tools, kMoreToolsBody);
    if (given.role == "tool") return tool_result(given, tool, index);
    if (given.role != "system" && given.role != "user" && given.role != "assistant") {
      fail("messages[", index, "].role: expected system, user, assistant or tool, found ", printable(given.role, 40));
    }
    if (given.name.empty()) {
      open("message", {{"role", given.role}});
    } else {
      open("message", {{"role", given.role}, {"name", given.name}});
    }
    if (given.role == "assistant") {
      calls_ = &given.tool_calls;
      results_ = 0;
      if (options_.prefill && last) return prefill(given, index);
      assistant(given, index);
    } else {
      content(given, index);
    }
    end_message();
  }

  void tool_result(const ChatMessage& given, const std::optional<std::string>& tool, size_t index) {
    ++results_;
    std::string name = tool.value_or("");
    if (!tool) {
      if (!calls_ || results_ > calls_->size()) {
        fail("messages[", index, "]: expected the name of the tool, or a call of the assistant that it answers");
      }
      name = (*calls_)[results_ - 1].name;
    }
    open("message", {{"role", "tool"}, {"tool", name}, {"index", std::to_string(results_)}});
    content(given, index);
    end_message();
  }

  void assistant(const ChatMessage& given, size_t index) {
    if (options_.thinking) {
      open("think");
      words(given.reasoning);
      close("think");
    }
    open("response");
    content(given, index);
    close("response");
    if (given.tool_calls.empty()) return;
    open("tools");
    for (size_t i = 0; i < given.tool_calls.size(); ++i) call(given.tool_calls[i], i + 1);
    close("tools");
  }

  // The model goes on where the message ends: in its reasoning when there is no content yet.
  void prefill(const ChatMessage& given, size_t index) {
    if (!given.tool_calls.empty()) fail("options.prefill: expected a message without tool calls");
    prefilled_ = true;
    const bool answered = std::any_of(given.content.begin(), given.content.end(), [](const ContentPart& part) {
      return part.kind == ContentPart::Kind::kImage || !part.text.empty();
    });
    if (options_.thinking) {
      open("think");
      words(given.reasoning);
      if (!answered) return;
      close("think");
    }
    open("response");
    content(given, index);
  }

  void call(const ToolCall& given, size_t index) {
    open("call", {{"tool", given.name}, {"index", std::to_string(index)}});
    if (const auto* text = std::get_if<std::string>(&given.arguments); text && !text->empty()) {
      if (const auto members = read_json_members(*text)) {
        for (const JsonMember& member : *members) argument(member.key, member.value);
      } else {  // not an object: as it is
        open("json", {{"type", "object"}});
        words(*text);
        close("json");
      }
    } else if (const auto* object = std::get_if<json::object>(&given.arguments)) {
      for (const auto& [key, value] : *object) argument(key, dump_json(value, ", ", ": ", false));
    }
    close("call");
  }

  // `value` as spelled in JSON. Strings are given unescaped.
  void argument(std::string_view key, std::string_view value) {
    const std::string_view type = json_type(value);
    open("argument", {{"key", key}, {"type", type}});
    if (type == "string") {
      words(read_json_string(value, 0, JsonDialect::kPython)->first);
    } else {
      words(value);
    }
    close("argument");
  }

  void declare_tools(const json::array& tools, std::string_view body) {
    open("message", {{"role", "system"}, {"type", "tool-declare"}});
    out_.add(concat(body, compact_sorted(tools), "\n```"), false);
    end_message();
  }

  void closing_messages() {
    if (options_.tool_choice == "required") {
      system_message("tool-choice",
                     "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next "
                     "message.");
    } else if (options_.tool_choice == "none") {
      system_message("tool-choice",
                     "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the "
                     "next message.");
    }
    if (options_.response_format != "json_object" && options_.response_format != "json_schema") return;
    std::string body =
        concat("The system is invoked with `response_format=", options_.response_format, "`.\n", kJsonBody);
    if (options_.response_format == "json_schema") {
      body += concat("\nThe JSON data must match the following schema:\n```json\n", compact_sorted(options_.schema),
                     "\n```");
    }
    system_message("response-format", body);
  }

  void system_message(std::string_view type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", type}});
    out_.add(body, false);
    end_message();
  }

  void content(const ChatMessage& given, size_t index) {
    for (const ContentPart& part : given.content) {
      if (part.kind == ContentPart::Kind::kImage) {
        image();
      } else if (part.kind == ContentPart::Kind::kText) {
        words(part.text);
      } else {
        fail("messages[", index, "].content: expected text or parts of type text or image, found ", part.text);
      }
    }
  }

  void words(std::string_view text) {
    for (size_t at; !options_.images.empty() && (at = text.find(kImagePlaceholder)) != text.npos;) {
      out_.add(text.substr(0, at), false);
      image();
      text.remove_prefix(at + kImagePlaceholder.size());
    }
    out_.add(text, false);
  }

  void image() {
    if (images_used_ >= options_.images.size()) {
      fail("options.images: the messages hold more images than the ", options_.images.size(), " given");
    }
    out_.add(options_.images[images_used_++], true);
  }

  void open(std::string_view tag, Attributes attributes = {}) { open_tag(out_, tag, attributes); }
  void close(std::string_view tag) { close_tag(out_, tag); }

  void end_message() {
    close("message");
    out_.add("<|end_of_msg|>", true);
  }

  RenderedPrompt finish() {
    if (images_used_ != options_.images.size()) {
      fail("options.images: ", options_.images.size(), " given, but the messages hold ", images_used_);
    }
    return std::move(out_);
  }

  const ChatRequest& request_;
  Options options_;
  RenderedPrompt out_;
  const std::vector<ToolCall>* calls_ = nullptr;  // of the last message of the assistant
  size_t results_ = 0;                            // of tools since then
  size_t images_used_ = 0;
  bool prefilled_ = false;
};

}  // namespace

RenderedPrompt render_kimi_k3(const ChatRequest& request) { return Renderer(request).render(); }

std::string_view open_kimi_k3_channel(const RenderedPrompt& prompt) {
  for (size_t i = prompt.segments.size() - prompt.begun; i-- > 1;) {
    const Segment& before = prompt.segments[i - 1];
    if (before.markup && before.text == "<|open|>") return prompt.segments[i].text == "think" ? "think" : "response";
  }
  return "response";
}

void open_kimi_k3_call(RenderedPrompt& prompt, std::optional<std::string_view> tool) {
  const size_t before = prompt.segments.size();
  if (open_kimi_k3_channel(prompt) == "think") {
    close_tag(prompt, "think");
    open_tag(prompt, "response");
  }
  close_tag(prompt, "response");
  open_tag(prompt, "tools");
  if (tool) {
    open_tag(prompt, "call", {{"tool", *tool}, {"index", "1"}});
  } else {
    begin_tag(prompt, "call");
    begin_attribute(prompt, "tool");
  }
  prompt.begun = prompt.segments.size() - before;
}

}  // namespace weir
