#include "cli/load_sse.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace weir::cli {

void SseParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (std::exchange(after_cr_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    if (line_.size() + data_.size() + std::min(end, bytes.size()) > kMaxEvent) {
      fail("event stream: expected events of at most ", kMaxEvent, " bytes");
    }
    if (end == bytes.npos) {
      line_ += bytes;
      return;
    }
    after_cr_ = bytes[end] == '\r';
    const std::string_view piece = bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      take_line(piece);
    } else {
      line_ += piece;
      const std::string line = std::exchange(line_, {});
      take_line(line);
    }
  }
}

void SseParser::take_line(std::string_view line) {
  if (std::exchange(at_start_, false) && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  if (line.empty()) {
    if (std::exchange(has_data_, false)) {
      const std::string data = std::exchange(data_, {});
      event_(data);
    }
    return;
  }
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  } else if (!field.empty() && field != "event" && field != "id" && field != "retry") {
    // The standard passes over unknown fields; no server of this API sends one, so it is an answer of another kind.
    fail("event stream: expected a line of an event, found ", printable(line));
  }
}

}  // namespace weir::cli
