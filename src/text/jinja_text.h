// Strings that remember who wrote them. A chat template pastes people's words between control markers that its author
// wrote; after rendering, only bytes that the author wrote may become markers. So each byte carries its origin through
// every filter and method.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weir::jinja {

enum class Origin : bool {
  kValue,     // came with the request: messages, tools, options
  kTemplate,  // written by the template's author, or a token of the model such as bos_token
};

// Immutable UTF-8. Origins are runs: `cuts_` are the offsets at which the origin flips.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, Origin origin);

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool ascii() const { return ascii_; }  // then an offset in code points is an offset in bytes

  // Calls f(std::string_view run, Origin) for the runs of bytes [begin, end), in order.
  template <class F>
  void for_each_run(size_t begin, size_t end, F f) const {
    size_t cut = std::upper_bound(cuts_.begin(), cuts_.end(), begin) - cuts_.begin();
    while (begin < end) {
      const size_t stop = cut < cuts_.size() ? std::min(cuts_[cut], end) : end;
      f(std::string_view(bytes_).substr(begin, stop - begin), origin_of_run(cut));
      begin = stop;
      ++cut;
    }
  }

  Text slice(size_t begin, size_t end) const;  // bytes
  Origin origin_at(size_t offset) const;

 private:
  friend class TextBuilder;
  Origin origin_of_run(size_t run) const { return Origin((first_ == Origin::kTemplate) != (run % 2 == 1)); }

  std::string bytes_;
  std::vector<size_t> cuts_;
  Origin first_ = Origin::kTemplate;
  bool ascii_ = true;
};

class TextBuilder {
 public:
  void append(std::string_view bytes, Origin origin);
  void append(const Text& text) { append(text, 0, text.size()); }
  void append(const Text& text, size_t begin, size_t end) {
    text.for_each_run(begin, end, [&](std::string_view run, Origin origin) { append(run, origin); });
  }
  size_t size() const { return text_.bytes_.size(); }
  Text take();  // leaves the builder empty

 private:
  Text text_;
  Origin last_ = Origin::kTemplate;
};

}  // namespace weir::jinja
