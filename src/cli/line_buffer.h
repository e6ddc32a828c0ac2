// The text of an input line while it is edited, and how it lies on the screen. UTF-8; knows nothing of terminals.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::cli {

class LineBuffer {
 public:
  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // in bytes, at the start of a character

  void set(std::string text);  // cursor at the end
  void insert(std::string_view text);
  void left();
  void right();
  void word_left();
  void word_right();
  void line_start();
  void line_end();
  void erase_left();
  void erase_right();
  void erase_word_left();
  void erase_to_line_start();
  void erase_to_line_end();

 private:
  size_t before(size_t at) const;
  size_t after(size_t at) const;

  std::string text_;
  size_t cursor_ = 0;
};

// Rows of at most `columns` columns, the first with `prompt` in front, later lines of the text indented as wide.
struct ScreenLines {
  std::vector<std::string> rows;
  size_t cursor_row = 0;
  int cursor_column = 0;
};
ScreenLines lay_out(std::string_view prompt, const LineBuffer& buffer, int columns);

}  // namespace weir::cli
