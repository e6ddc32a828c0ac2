// Server-sent events (WHATWG HTML, section 9.2), from bytes that are cut anywhere.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace weir::cli {

class SseParser {
 public:
  static constexpr size_t kMaxEvent = size_t{16} << 20;

  // Called with the data of an event: its data lines joined by line feeds. Comments, other fields and events without
  // data are passed over, as the standard says.
  using Event = std::function<void(std::string_view data)>;

  explicit SseParser(Event event) : event_(std::move(event)) {}

  // Error: a line that begins with no field name and no colon, which is no event stream; an event above kMaxEvent.
  void feed(std::string_view bytes);
  // Data that still lacks the empty line that ends an event; at the end of a stream, the sign of one that was cut.
  bool inside_event() const { return has_data_ || !line_.empty(); }

 private:
  void take_line(std::string_view line);

  Event event_;
  std::string line_;  // the beginning of one whose end has not come
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // a line feed that comes next belongs to the line's end
  bool at_start_ = true;   // a byte order mark may come
};

}  // namespace weir::cli
