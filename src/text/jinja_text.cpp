#include "text/jinja_text.h"

namespace weir::jinja {
namespace {

bool is_ascii(std::string_view bytes) {
  for (const char c : bytes) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

}  // namespace

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)), first_(origin), ascii_(is_ascii(bytes_)) {}

Text Text::slice(size_t begin, size_t end) const {
  TextBuilder out;
  out.append(*this, begin, end);
  return out.take();
}

Origin Text::origin_at(size_t offset) const {
  return origin_of_run(std::upper_bound(cuts_.begin(), cuts_.end(), offset) - cuts_.begin());
}

void TextBuilder::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  if (text_.bytes_.empty()) {
    text_.first_ = origin;
  } else if (origin != last_) {
    text_.cuts_.push_back(text_.bytes_.size());
  }
  last_ = origin;
  text_.bytes_ += bytes;
}

Text TextBuilder::take() {
  text_.ascii_ = is_ascii(text_.bytes_);
  return std::exchange(text_, Text());
}

}  // namespace weir::jinja
