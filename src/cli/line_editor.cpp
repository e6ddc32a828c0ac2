#include "cli/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/error.h"
#include "cli/terminal.h"

namespace weir::cli {
namespace {

constexpr int kCtrlA = 1, kCtrlB = 2, kCtrlC = 3, kCtrlD = 4, kCtrlE = 5, kCtrlF = 6, kCtrlH = 8, kTab = 9, kLf = 10,
              kCtrlK = 11, kCtrlL = 12, kEnter = 13, kCtrlN = 14, kCtrlP = 16, kCtrlU = 21, kCtrlW = 23, kEscape = 27,
              kBackspace = 127;
constexpr std::string_view kPasteEnd = "\x1b[201~";

void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

bool typed_within(int milliseconds) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, milliseconds) > 0;
}

}  // namespace

bool LineEditor::fill() {
  input_.erase(0, used_);
  used_ = 0;
  char bytes[4096];
  ssize_t n;
  do {
    n = ::read(STDIN_FILENO, bytes, sizeof bytes);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return false;
  input_.append(bytes, static_cast<size_t>(n));
  return true;
}

int LineEditor::next() {
  if (used_ == input_.size() && !fill()) return -1;
  return static_cast<unsigned char>(input_[used_++]);
}

void LineEditor::paste() {
  size_t end;
  while ((end = input_.find(kPasteEnd, used_)) == std::string::npos) {
    if (!fill()) break;
  }
  std::string text = input_.substr(used_, end == std::string::npos ? end : end - used_);
  used_ = end == std::string::npos ? input_.size() : end + kPasteEnd.size();
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i] == '\r' ? '\n' : text[i];
    if (text[i] == '\n' && i > 0 && text[i - 1] == '\r') continue;
    if (c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20) clean += c;
  }
  line_.insert(clean);
}

void LineEditor::history(int direction) {
  const size_t target = direction < 0 ? history_at_ - (history_at_ > 0) : std::min(history_at_ + 1, history_.size());
  if (target == history_at_) return;
  if (history_at_ == history_.size()) new_line_ = line_.text();
  history_at_ = target;
  line_.set(target == history_.size() ? new_line_ : history_[target]);
}

LineEditor::Outcome LineEditor::escape() {
  // An Escape alone: nothing follows at once.
  if (used_ == input_.size() && !typed_within(50)) return Outcome::kGoOn;
  const int kind = next();
  if (kind == kEnter || kind == kLf) {
    line_.insert("\n");
  } else if (kind == 'b') {
    line_.word_left();
  } else if (kind == 'f') {
    line_.word_right();
  } else if (kind == kBackspace || kind == kCtrlH) {
    line_.erase_word_left();
  }
  if (kind != '[' && kind != 'O') return kind < 0 ? Outcome::kEof : Outcome::kGoOn;
  std::string parameters;
  int final = next();
  while (final >= 0x20 && final < 0x40 && parameters.size() < 16) {
    parameters += static_cast<char>(final);
    final = next();
  }
  const bool by_words = parameters.ends_with(";5") || parameters.ends_with(";3");
  if (final == 'A') history(-1);
  if (final == 'B') history(1);
  if (final == 'C') by_words ? line_.word_right() : line_.right();
  if (final == 'D') by_words ? line_.word_left() : line_.left();
  if (final == 'H' || (final == '~' && (parameters == "1" || parameters == "7"))) line_.line_start();
  if (final == 'F' || (final == '~' && (parameters == "4" || parameters == "8"))) line_.line_end();
  if (final == '~' && parameters == "3") line_.erase_right();
  if (final == '~' && parameters == "200") paste();
  return final < 0 ? Outcome::kEof : Outcome::kGoOn;
}

LineEditor::Outcome LineEditor::key(int byte) {
  switch (byte) {
    case -1:
      return Outcome::kEof;
    case kEnter:
    case kLf:
      return Outcome::kLine;
    case kCtrlC:
      return Outcome::kInterrupt;
    case kCtrlD:
      if (line_.text().empty()) return Outcome::kEof;
      line_.erase_right();
      break;
    case kCtrlA:
      line_.line_start();
      break;
    case kCtrlE:
      line_.line_end();
      break;
    case kCtrlB:
      line_.left();
      break;
    case kCtrlF:
      line_.right();
      break;
    case kCtrlH:
    case kBackspace:
      line_.erase_left();
      break;
    case kCtrlK:
      line_.erase_to_line_end();
      break;
    case kCtrlU:
      line_.erase_to_line_start();
      break;
    case kCtrlW:
      line_.erase_word_left();
      break;
    case kCtrlP:
      history(-1);
      break;
    case kCtrlN:
      history(1);
      break;
    case kCtrlL:
      put("\x1b[H\x1b[2J");
      drawn_row_ = 0;
      break;
    case kEscape:
      return escape();
    default:
      if (byte >= 0x20 || byte == kTab) {
        const char character = static_cast<char>(byte);
        line_.insert({&character, 1});
      }
  }
  return Outcome::kGoOn;
}

void LineEditor::draw(std::string_view prompt) {
  const TerminalSize size = terminal_size(STDOUT_FILENO);
  const ScreenLines lines = lay_out(prompt, line_, std::max(size.columns, 4));
  // A text taller than the window: the part around the cursor.
  const size_t height = static_cast<size_t>(std::max(size.rows - 1, 1));
  size_t first = 0;
  if (lines.rows.size() > height) {
    first = std::min(lines.cursor_row - std::min(lines.cursor_row, height / 2), lines.rows.size() - height);
  }
  const size_t last = std::min(first + height, lines.rows.size());
  std::string out = "\r";
  if (drawn_row_ > 0) out += concat("\x1b[", drawn_row_, "A");
  out += "\x1b[J";
  for (size_t row = first; row < last; ++row) {
    if (row > first) out += "\r\n";
    out += lines.rows[row];
  }
  const size_t up = last - 1 - lines.cursor_row;
  if (up > 0) out += concat("\x1b[", up, "A");
  out += "\r";
  if (lines.cursor_column > 0) out += concat("\x1b[", lines.cursor_column, "C");
  put(out);
  drawn_row_ = lines.cursor_row - first;
}

LineEditor::End LineEditor::read(std::string_view prompt, std::string& text) {
  std::fflush(stdout);
  const QuietInput mode(QuietInput::CtrlC::kByte);
  put("\x1b[?2004h");  // bracketed paste
  line_.set("");
  history_at_ = history_.size();
  drawn_row_ = 0;
  Outcome outcome = Outcome::kGoOn;
  while (outcome == Outcome::kGoOn) {
    if (used_ == input_.size()) draw(prompt);  // once for all that was typed meanwhile
    outcome = key(next());
  }
  line_.set(line_.text());
  draw(prompt);
  put("\x1b[?2004l\r\n");
  text = line_.text();
  if (outcome == Outcome::kLine) {
    const bool worth = text.find_first_not_of(" \t\n") != std::string::npos;
    if (worth && (history_.empty() || history_.back() != text)) history_.push_back(text);
    return End::kLine;
  }
  return outcome == Outcome::kInterrupt ? End::kInterrupt : End::kEof;
}

}  // namespace weir::cli
