#include "engine/stop_strings.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace weir {

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    assert(!text.empty());
    Stop stop{.text = std::move(text)};
    stop.fallback.assign(stop.text.size(), 0);
    for (size_t i = 1, length = 0; i < stop.text.size(); ++i) {
      while (length > 0 && stop.text[i] != stop.text[length]) length = stop.fallback[length - 1];
      if (stop.text[i] == stop.text[length]) ++length;
      stop.fallback[i] = length;
    }
    stops_.push_back(std::move(stop));
  }
}

void StopStrings::Stop::step(char c) {
  while (seen > 0 && text[seen] != c) seen = fallback[seen - 1];
  if (text[seen] == c) ++seen;
}

std::string StopStrings::push(std::string_view input) {
  if (matched()) return {};
  if (stops_.empty()) return std::string(input);
  for (const char c : input) {
    held_ += c;
    size_t longest = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      stops_[i].step(c);
      const size_t size = stops_[i].text.size();
      if (stops_[i].seen < size || size <= longest) continue;
      longest = size;
      match_ = static_cast<int>(i);
    }
    if (!matched()) continue;
    held_.resize(held_.size() - longest);
    return std::exchange(held_, {});
  }
  size_t kept = 0;
  for (const Stop& stop : stops_) kept = std::max(kept, stop.seen);
  std::string out = held_.substr(0, held_.size() - kept);
  held_.erase(0, held_.size() - kept);
  return out;
}

std::string StopStrings::finish() {
  for (Stop& stop : stops_) stop.seen = 0;
  return std::exchange(held_, {});
}

}  // namespace weir
