#include "text/thinking_effort.h"

namespace weir {
namespace {

struct Effort {
  std::string_view word;
  bool thinking;
  std::string_view thinking_effort;   // low, high, max
  std::string_view reasoning_effort;  // low, medium, high
};

constexpr Effort kEfforts[] = {
    {"none", false, "", "low"},         {"minimal", true, "low", "low"}, {"low", true, "low", "low"},
    {"medium", true, "high", "medium"}, {"high", true, "high", "high"},  {"xhigh", true, "max", "high"},
    {"max", true, "max", "high"},
};

}  // namespace

bool set_thinking_effort(std::string_view effort, boost::json::object& options) {
  for (const Effort& known : kEfforts) {
    if (known.word != effort) continue;
    options.emplace("thinking", known.thinking);
    options.emplace("enable_thinking", known.thinking);
    if (!known.thinking_effort.empty()) options.emplace("thinking_effort", known.thinking_effort);
    options.emplace("reasoning_effort", known.reasoning_effort);
    return true;
  }
  return false;
}

}  // namespace weir
