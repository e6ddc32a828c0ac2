// How much a model shall think, in the words of each format.
#pragma once

#include <boost/json/object.hpp>
#include <string_view>

namespace weir {

// `effort` as APIs have it: none, minimal, low, medium, high, xhigh or max. Sets the options that formats know for it,
// unless they are there already; templates ignore those that they don't know:
//   thinking          Kimi K3, DeepSeek
//   enable_thinking   Qwen, GLM
//   thinking_effort   Kimi K3
//   reasoning_effort  gpt-oss
// False, and nothing is set, when it is another word.
bool set_thinking_effort(std::string_view effort, boost::json::object& options);

}  // namespace weir
