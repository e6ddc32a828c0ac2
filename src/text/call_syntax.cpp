#include "text/call_syntax.h"

#include <algorithm>

#include "text/kimi_json.h"

namespace weir {
namespace {

using Body = CallSyntax::Body;

// The first whose signs are there counts.
const CallSyntax kSyntaxes[] = {
    {.name = "qwen3-coder",
     .signs = {"<tool_call>", "<function="},
     .body = Body::kParameters,
     .open = "<tool_call>",
     .close = "</tool_call>",
     .before_name = "<function=",
     .after_name = ">",
     .key = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>",
     .end = "</function>",
     .value_on_lines = true},
    {.name = "glm",
     .signs = {"<tool_call>", "<arg_key>"},
     .body = Body::kParameters,
     .open = "<tool_call>",
     .close = "</tool_call>",
     .after_name = "\n<",
     .key = "<arg_key>",
     .key_end = "</arg_key>",
     .value = "<arg_value>",
     .value_end = "</arg_value>",
     .end = "</tool_call>"},
    {.name = "hermes", .signs = {"<tool_call>", "arguments"}, .open = "<tool_call>", .close = "</tool_call>"},
    {.name = "kimi-k2",
     .signs = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>"},
     .body = Body::kRaw,
     .section = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .open = "<|tool_call_begin|>",
     .close = "<|tool_call_end|>",
     .before_name = "functions.",
     .after_name = "<|tool_call_argument_begin|>",
     .number = ":0"},
    {.name = "deepseek-v3",
     .signs = {"<｜tool▁calls▁begin｜>", "```json"},
     .body = Body::kRaw,
     .section = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .open = "<｜tool▁call▁begin｜>",
     .close = "\n```<｜tool▁call▁end｜>",
     .before_name = "function<｜tool▁sep｜>",
     .after_name = "\n```json\n"},
    {.name = "deepseek-v3.1",
     .signs = {"<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"},
     .body = Body::kRaw,
     .section = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .open = "<｜tool▁call▁begin｜>",
     .close = "<｜tool▁call▁end｜>",
     .after_name = "<｜tool▁sep｜>"},
    {.name = "llama3", .signs = {"ipython", "\"parameters\": "}, .arguments = "parameters"},
};

}  // namespace

bool CallSyntax::marks(std::string_view token) const {
  const std::string_view all[] = {section, section_end, open,  close,     before_name, after_name,
                                  key,     key_end,     value, value_end, end};
  return std::ranges::any_of(all, [&](std::string_view mark) { return mark.find(token) != std::string_view::npos; });
}

std::vector<std::pair<std::string, bool>> CallSyntax::opening(std::optional<std::string_view> tool) const {
  std::vector<std::pair<std::string, bool>> out;
  const auto add = [&](std::string_view text, bool markup) {
    if (!text.empty()) out.emplace_back(text, markup);
  };
  const auto add_name = [&] {
    if (tool) add(*tool, false);
  };
  add(section, true);
  add(open, true);
  switch (body) {
    case Body::kObject: {
      add(open.empty() ? "{\"name\": \"" : "\n{\"name\": \"", true);
      if (!tool) break;
      std::string escaped;
      append_json_escaped(escaped, *tool);
      add(escaped, false);
      add("\", \"" + std::string(arguments) + "\":", true);
      break;
    }
    case Body::kParameters:
      if (value_on_lines) add("\n", true);
      add(before_name, true);
      add_name();
      if (tool) add(value_on_lines ? ">\n" : "\n", true);
      break;
    case Body::kRaw:
      add(before_name, true);
      add_name();
      if (tool) add(std::string(number) + std::string(after_name), true);
      break;
  }
  return out;
}

const CallSyntax* find_call_syntax(std::string_view template_source) {
  for (const CallSyntax& syntax : kSyntaxes) {
    const auto there = [&](std::string_view sign) { return template_source.find(sign) != std::string_view::npos; };
    if (std::ranges::all_of(syntax.signs, there)) return &syntax;
  }
  return nullptr;
}

}  // namespace weir
