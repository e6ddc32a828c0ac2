// How models behind chat templates write tool calls: one table, chosen by what the template's text contains.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weir {

struct CallSyntax {
  enum class Body {
    kObject,      // {"name": ..., "arguments": {...}}
    kParameters,  // a name, then a text for each key
    kRaw,         // a name, then the arguments' JSON
  };

  std::string_view name;                  // of the style
  std::array<std::string_view, 2> signs;  // all of them stand in the template
  Body body = Body::kObject;
  // Around all calls, and around each. Without `open` the whole answer is the call, and only of a declared tool.
  std::string_view section, section_end, open, close;
  // Of kObject: the key of the arguments when the prompt opens the call. Answers may use either.
  std::string_view arguments = "arguments";
  // Of kParameters and kRaw, around the name. kParameters: any of the characters of after_name ends it, of which '<' is
  // not part of the end.
  std::string_view before_name, after_name;
  std::string_view key, key_end, value, value_end, end;  // of kParameters; `end`: behind the last one
  bool value_on_lines = false;                           // a line break on either side is not part of the value
  std::string_view number;                               // of kRaw: between the name and after_name, of the first call

  // Does some mark of the syntax contain this text? Then it counts though it is a special token.
  bool marks(std::string_view token) const;
  // The beginning of an answer that calls a tool: pieces, of which those with `true` are markup. Without a name, up to
  // where it comes.
  std::vector<std::pair<std::string, bool>> opening(std::optional<std::string_view> tool) const;
};

// nullptr when the template writes calls in no known way, or none.
const CallSyntax* find_call_syntax(std::string_view template_source);

}  // namespace weir
