// Conversations, the prompts they become, and the answers that models give: the types that all chat formats share.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace weir {

struct ContentPart {
  enum class Kind { kText, kImage, kOther };
  Kind kind = Kind::kText;
  std::string text;  // of kOther: what it is, for messages; templates may know what to do with it
};

struct ToolCall {
  std::string id, name;
  // Absent, text that should be a JSON object (as OpenAI's API has it), or an object.
  std::variant<std::monostate, std::string, boost::json::object> arguments;
};

struct ChatMessage {
  std::string role;
  std::vector<ContentPart> content;  // a string is one part; null and absent are none
  std::string reasoning;             // reasoning_content, else reasoning, else thinking
  std::vector<ToolCall> tool_calls;
  std::string name;
  std::optional<std::string> tool;          // of a tool's result: the tool's name
  std::optional<std::string> tool_call_id;  // tool_call_id, else id
  boost::json::array tools;                 // that the message adds
  boost::json::object json;                 // the message as it came, for templates
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::optional<boost::json::array> tools;
  bool add_generation_prompt = true;
  // thinking, thinking_effort, tool_choice, response_format, prefill ...: each format takes those that it knows;
  // templates see all of them as variables.
  boost::json::object options;
};

// An array of messages, or {messages, tools, add_generation_prompt, options}; there, tools may stand in options, and
// chat_template_kwargs, tool_choice, response_format and reasoning_effort beside them. Other fields are ignored. Throws
// Error "FILE: messages[1].role: expected WHAT, found WHAT".
ChatRequest parse_chat_request(const boost::json::value& json, const std::string& file);

// Turns arguments of tool calls that are the text of a JSON object into that object, in `json` too, as most templates
// expect them. Other arguments stay as they are.
void parse_tool_arguments(ChatRequest& request);

// A stretch of a prompt. Each is encoded on its own; only in `markup` do special tokens count, so that nobody's words
// become a marker.
struct Segment {
  std::string text;
  bool markup = false;

  bool operator==(const Segment&) const = default;
};

struct RenderedPrompt {
  std::string text;  // of all segments
  std::vector<Segment> segments;
  size_t begun = 0;  // segments at the end that are the beginning of the answer already

  void add(std::string_view piece, bool markup);  // a segment of its own; nothing for ""
};

// What a streaming parser of a model's output reports.
struct ChatEvent {
  enum class Kind {
    kReasoning,          // text
    kContent,            // text
    kToolCallStart,      // index, name, id
    kToolCallArguments,  // index, text: the next part of the arguments' JSON
    kToolCallEnd,        // index; a call that is cut before its end gets none and doesn't count
    kEnd,                // text: the finish reason
  };
  Kind kind = Kind::kEnd;
  int index = 0;  // of the call, from 0
  std::string text, name, id;
};

struct ParsedToolCall {
  std::string id, name, arguments;
};

// The same answer when it isn't streamed.
struct ParsedMessage {
  std::string reasoning, content;
  std::vector<ParsedToolCall> tool_calls;  // whole ones
  std::string finish_reason;               // "stop", "tool_calls" or "length"; empty before the end
};

}  // namespace weir
