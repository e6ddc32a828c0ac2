// Any answer in any style gives the same message whole and byte by byte, and the stream's events put together are that
// message.
#include <cstdint>
#include <cstdlib>

#include "text/call_parser.h"

namespace {

using weir::CallParser;
using weir::CallSyntax;
using weir::ChatEvent;
using weir::ParsedMessage;

constexpr const char* kTemplates[] = {
    "<tool_call> arguments",         "<tool_call><function=",
    "<tool_call><arg_key>",          "<|tool_call_begin|><|tool_call_argument_begin|>",
    "<｜tool▁calls▁begin｜>```json", "<｜tool▁calls▁begin｜><｜tool▁sep｜>",
    "ipython \"parameters\": "};

void require(bool holds) {
  if (!holds) std::abort();
}

const boost::json::array& tools() {
  static const boost::json::array value = {
      {{"type", "function"},
       {"function",
        {{"name", "f"},
         {"parameters", {{"properties", {{"s", {{"type", "string"}}}, {"n", {{"type", "number"}}}}}}}}}}};
  return value;
}

ParsedMessage parse(const CallSyntax& syntax, std::string_view text, size_t piece, bool complete) {
  ParsedMessage message, seen;
  std::vector<ChatEvent> events;
  CallParser parser(syntax, tools(), "c");
  for (size_t at = 0; at < text.size(); at += piece) parser.push(text.substr(at, piece), message, events);
  parser.finish(complete, message, events);
  std::vector<std::string> arguments;
  for (const ChatEvent& event : events) {
    if (event.kind == ChatEvent::Kind::kContent) seen.content += event.text;
    if (event.kind == ChatEvent::Kind::kToolCallStart) arguments.emplace_back();
    if (event.kind == ChatEvent::Kind::kToolCallArguments) arguments.at(static_cast<size_t>(event.index)) += event.text;
    if (event.kind != ChatEvent::Kind::kToolCallEnd) continue;
    require(message.tool_calls.at(static_cast<size_t>(event.index)).arguments ==
            arguments.at(static_cast<size_t>(event.index)));
    seen.tool_calls.emplace_back();
  }
  require(seen.content == message.content && seen.tool_calls.size() == message.tool_calls.size());
  return message;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const CallSyntax& syntax = *weir::find_call_syntax(kTemplates[data[0] % std::size(kTemplates)]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const bool complete = data[1] % 2 == 0;
  const ParsedMessage whole = parse(syntax, text, text.size() + 1, complete);
  for (const size_t piece : {1, 3}) {
    const ParsedMessage cut = parse(syntax, text, piece, complete);
    require(cut.content == whole.content && cut.tool_calls.size() == whole.tool_calls.size());
    for (size_t i = 0; i < whole.tool_calls.size(); ++i) {
      require(cut.tool_calls[i].name == whole.tool_calls[i].name);
      require(cut.tool_calls[i].arguments == whole.tool_calls[i].arguments);
    }
  }
  return 0;
}
