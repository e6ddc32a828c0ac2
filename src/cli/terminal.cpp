#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace weir::cli {
namespace {

// What signal handlers touch.
termios saved_mode;
volatile sig_atomic_t mode_is_saved = 0;
volatile sig_atomic_t interrupts = 0;
struct sigaction previous_action;

void restore_mode() {
  if (mode_is_saved) tcsetattr(STDIN_FILENO, TCSANOW, &saved_mode);
}

void on_interrupt(int) {
  interrupts = interrupts + 1;
  if (interrupts < 2) return;
  restore_mode();
  constexpr char kEnd[] = "\x1b[0m\n";
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, kEnd, sizeof kEnd - 1);
  _exit(130);
}

}  // namespace

bool is_terminal(int fd) { return isatty(fd) == 1; }

TerminalSize terminal_size(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

Style::Style(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  on_ =
      is_terminal(fd) && (no_color == nullptr || *no_color == 0) && term != nullptr && std::string_view(term) != "dumb";
}

QuietInput::QuietInput(CtrlC ctrl_c) {
  if (tcgetattr(STDIN_FILENO, &saved_mode) != 0) return;
  mode_is_saved = 1;
  termios mode = saved_mode;
  mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);
  if (ctrl_c == CtrlC::kByte) {
    mode.c_lflag &= ~static_cast<tcflag_t>(ISIG);
    mode.c_iflag &= ~static_cast<tcflag_t>(ICRNL | IXON);
  }
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
}

QuietInput::~QuietInput() {
  if (mode_is_saved) tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_mode);
  mode_is_saved = 0;
}

InterruptGuard::InterruptGuard() {
  interrupts = 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &previous_action);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &previous_action, nullptr); }

bool InterruptGuard::interrupted() { return interrupts > 0; }

}  // namespace weir::cli
