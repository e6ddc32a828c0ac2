// Cuts a template into data and tokens, with Jinja's whitespace control: trim_blocks, lstrip_blocks, and the signs of
// {%- -%} {%+ +%}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weir::jinja {

struct Token {
  enum class Kind {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  int line = 0;
  std::string text;  // of kString: unescaped; of kOperator: the operator
  int64_t integer = 0;
  double number = 0;

  bool is(std::string_view op) const { return kind == Kind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
};

// Ends with a kEnd token. TemplateError names `name` and the line. `source` is valid UTF-8.
std::vector<Token> tokenize(const std::string& name, std::string_view source);

}  // namespace weir::jinja
