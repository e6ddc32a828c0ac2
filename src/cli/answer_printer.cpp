#include "cli/answer_printer.h"

#include <cstdio>

#include "base/error.h"

namespace weir::cli {

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail("standard output: write failed");
}

void AnswerPrinter::put(std::string_view text) {
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  at_line_start_ = text.back() == '\n';
}

void AnswerPrinter::leave_reasoning() {
  if (!in_reasoning_) return;
  in_reasoning_ = false;
  std::fwrite(style_.plain().data(), 1, style_.plain().size(), stdout);
  put(at_line_start_ ? "\n" : "\n\n");
}

void AnswerPrinter::show(const ChatEvent& event) {
  switch (event.kind) {
    case ChatEvent::Kind::kReasoning:
      if (reasoning_ == ReasoningShown::kNo) return;
      if (!in_reasoning_) std::fwrite(style_.dim().data(), 1, style_.dim().size(), stdout);
      in_reasoning_ = true;
      put(event.text);
      break;
    case ChatEvent::Kind::kContent:
      leave_reasoning();
      put(event.text);
      break;
    case ChatEvent::Kind::kToolCallStart:
      leave_reasoning();
      if (!at_line_start_) put("\n");
      put(event.name);
      put("(");
      break;
    case ChatEvent::Kind::kToolCallArguments:
      put(event.text);
      break;
    case ChatEvent::Kind::kToolCallEnd:
      put(")\n");
      break;
    case ChatEvent::Kind::kEnd:
      break;
  }
  flush_output();
}

void AnswerPrinter::end() {
  if (in_reasoning_) std::fwrite(style_.plain().data(), 1, style_.plain().size(), stdout);
  in_reasoning_ = false;
  if (!at_line_start_) put("\n");
  at_line_start_ = true;
  flush_output();
}

void ShownAnswer::show() {
  for (const ChatEvent& event : events_) {
    if (printer_) printer_->show(event);
  }
  events_.clear();
}

void ShownAnswer::push(int32_t token) {
  stream_->push(token, events_);
  show();
}

void ShownAnswer::end(const Completion& completion) {
  if (completion.stop_token) stream_->push(*completion.stop_token, events_);
  stream_->finish(events_);
  show();
  if (printer_) printer_->end();
}

}  // namespace weir::cli
