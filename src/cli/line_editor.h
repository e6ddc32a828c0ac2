// Reads lines from a terminal: editing, history, multi-line pastes (bracketed paste), wide characters, narrow windows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/line_buffer.h"

namespace weir::cli {

class LineEditor {
 public:
  enum class End { kLine, kInterrupt, kEof };

  // Enter ends the line; Alt-Enter and pastes put newlines into it. kInterrupt: Ctrl-C; kEof: Ctrl-D on an empty line,
  // or no terminal any more. `text` is what was typed.
  End read(std::string_view prompt, std::string& text);

 private:
  enum class Outcome { kGoOn, kLine, kInterrupt, kEof };

  bool fill();  // reads what has been typed; false at the end of input
  int next();   // a byte, waiting for one; -1 at the end of input
  Outcome key(int byte);
  Outcome escape();
  void paste();
  void history(int direction);
  void draw(std::string_view prompt);

  std::string input_;  // typed, not yet used
  size_t used_ = 0;
  LineBuffer line_;
  std::vector<std::string> history_;
  size_t history_at_ = 0;  // history_.size(): the new line
  std::string new_line_;   // while older lines are shown
  size_t drawn_row_ = 0;   // of the cursor, from the first row on the screen
};

}  // namespace weir::cli
