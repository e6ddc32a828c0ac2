// Shows an answer on standard output while it is generated.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/terminal.h"
#include "engine/generate.h"
#include "engine/model_text.h"

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

// An answer's ids as they come, made into words and shown.
class ShownAnswer {
 public:
  // Without `printer` nothing is shown.
  ShownAnswer(std::unique_ptr<AnswerStream> stream, std::optional<AnswerPrinter> printer)
      : stream_(std::move(stream)), printer_(std::move(printer)) {}

  void push(int32_t token);
  void end(const Completion& completion);  // of which all other tokens have been pushed
  const ParsedMessage& message() const { return stream_->message(); }

 private:
  void show();

  std::unique_ptr<AnswerStream> stream_;
  std::optional<AnswerPrinter> printer_;
  std::vector<ChatEvent> events_;
};

}  // namespace weir::cli
