// Shows an answer on standard output while it is generated.
#pragma once

#include <string_view>

#include "cli/terminal.h"
#include "text/chat.h"

namespace weir::cli {

void flush_output();  // Error when standard output takes no more

enum class ReasoningShown { kYes, kNo };

// Reasoning is dim on a terminal and apart by an empty line; calls of tools are shown as name(arguments).
class AnswerPrinter {
 public:
  AnswerPrinter(Style style, ReasoningShown reasoning) : style_(style), reasoning_(reasoning) {}

  void show(const ChatEvent& event);
  void end();  // of the answer: the line

 private:
  void put(std::string_view text);
  void leave_reasoning();

  Style style_;
  ReasoningShown reasoning_;
  bool in_reasoning_ = false;
  bool at_line_start_ = true;
};

}  // namespace weir::cli
