// The terminal as the interactive commands need it.
#pragma once

#include <string>
#include <string_view>

namespace weir::cli {

bool is_terminal(int fd);

struct TerminalSize {
  int columns = 80, rows = 24;
};
TerminalSize terminal_size(int fd);

// Escape sequences, or nothing where they are not wanted: no terminal, NO_COLOR (https://no-color.org) or TERM=dumb.
class Style {
 public:
  explicit Style(int fd);
  std::string_view dim() const { return on_ ? "\x1b[2m" : ""; }
  std::string_view bold() const { return on_ ? "\x1b[1m" : ""; }
  std::string_view plain() const { return on_ ? "\x1b[0m" : ""; }
  std::string_view erase_line() const { return on_ ? "\r\x1b[K" : ""; }  // of the cursor

 private:
  bool on_ = false;
};

// Takes standard input out of line mode while the object lives: no echo, bytes as they are typed.
class QuietInput {
 public:
  enum class CtrlC { kSignal, kByte };
  explicit QuietInput(CtrlC ctrl_c);
  ~QuietInput();
  QuietInput(const QuietInput&) = delete;
  QuietInput& operator=(const QuietInput&) = delete;
};

// Counts Ctrl-C (SIGINT) while the object lives. The second one ends the program with code 130, the terminal restored.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  static bool interrupted();
};

}  // namespace weir::cli
