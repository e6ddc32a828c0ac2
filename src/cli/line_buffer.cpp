#include "cli/line_buffer.h"

#include <utf8proc.h>

namespace weir::cli {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

struct Glyph {
  size_t bytes = 1;
  int columns = 1;
  bool printable = true;
};

Glyph glyph_at(std::string_view text, size_t at) {
  utf8proc_int32_t code = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  const utf8proc_ssize_t n = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  if (n <= 0) return {1, 1, false};
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return {static_cast<size_t>(n), 1, false};
  return {static_cast<size_t>(n), utf8proc_charwidth(code), true};
}

}  // namespace

size_t LineBuffer::before(size_t at) const {
  if (at == 0) return 0;
  --at;
  while (at > 0 && is_continuation(text_[at])) --at;
  return at;
}

size_t LineBuffer::after(size_t at) const {
  if (at >= text_.size()) return text_.size();
  ++at;
  while (at < text_.size() && is_continuation(text_[at])) ++at;
  return at;
}

void LineBuffer::set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void LineBuffer::insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void LineBuffer::left() { cursor_ = before(cursor_); }
void LineBuffer::right() { cursor_ = after(cursor_); }

void LineBuffer::word_left() {
  while (cursor_ > 0 && text_[cursor_ - 1] == ' ') left();
  while (cursor_ > 0 && text_[cursor_ - 1] != ' ' && text_[cursor_ - 1] != '\n') left();
}

void LineBuffer::word_right() {
  while (cursor_ < text_.size() && text_[cursor_] == ' ') right();
  while (cursor_ < text_.size() && text_[cursor_] != ' ' && text_[cursor_] != '\n') right();
}

void LineBuffer::line_start() {
  while (cursor_ > 0 && text_[cursor_ - 1] != '\n') --cursor_;
}

void LineBuffer::line_end() {
  while (cursor_ < text_.size() && text_[cursor_] != '\n') ++cursor_;
}

void LineBuffer::erase_left() {
  const size_t from = before(cursor_);
  text_.erase(from, cursor_ - from);
  cursor_ = from;
}

void LineBuffer::erase_right() { text_.erase(cursor_, after(cursor_) - cursor_); }

void LineBuffer::erase_word_left() {
  const size_t end = cursor_;
  word_left();
  text_.erase(cursor_, end - cursor_);
}

void LineBuffer::erase_to_line_start() {
  const size_t end = cursor_;
  line_start();
  text_.erase(cursor_, end - cursor_);
}

void LineBuffer::erase_to_line_end() {
  const size_t from = cursor_;
  line_end();
  text_.erase(from, cursor_ - from);
  cursor_ = from;
}

ScreenLines lay_out(std::string_view prompt, const LineBuffer& buffer, int columns) {
  constexpr int kTab = 4;
  ScreenLines out;
  out.rows.emplace_back(prompt);
  const int indent = static_cast<int>(prompt.size());
  int column = indent;
  const std::string& text = buffer.text();
  for (size_t at = 0; at <= text.size();) {
    if (at == buffer.cursor()) {
      out.cursor_row = out.rows.size() - 1;
      out.cursor_column = column;
    }
    if (at == text.size()) break;
    if (text[at] == '\n') {
      out.rows.emplace_back(static_cast<size_t>(indent), ' ');
      column = indent;
      ++at;
      continue;
    }
    const Glyph glyph = glyph_at(text, at);
    const int width = text[at] == '\t' ? kTab : glyph.columns;
    // The last column stays free: terminals differ in where the cursor is after it.
    if (column + width >= columns && column > 0) {
      out.rows.emplace_back();
      column = 0;
      if (at == buffer.cursor()) {
        out.cursor_row = out.rows.size() - 1;
        out.cursor_column = 0;
      }
    }
    if (text[at] == '\t') {
      out.rows.back().append(kTab, ' ');
    } else if (glyph.printable) {
      out.rows.back().append(text, at, glyph.bytes);
    } else {
      out.rows.back() += '?';
    }
    column += width;
    at += glyph.bytes;
  }
  return out;
}

}  // namespace weir::cli
