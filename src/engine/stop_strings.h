// Stop strings in text that arrives in pieces, matched across their borders.
//
// The text ends before the stop string whose last byte comes first; of several that end there, the longest counts. So
// the result depends on the text alone, not on how it was cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir {

class StopStrings {
 public:
  // None of them empty. With valid UTF-8 in stops and text, no character is ever cut.
  explicit StopStrings(std::vector<std::string> stops = {});

  // The text that can be given away now: what may yet become a stop string is held back, and after a match nothing
  // comes any more.
  std::string push(std::string_view text);
  // What was held back: it has not become a stop string. The next push begins a new text.
  std::string finish();

  bool matched() const { return match_ >= 0; }
  const std::string& match() const { return stops_[static_cast<size_t>(match_)].text; }  // only after a match

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [n]: length of the longest proper prefix of text that ends at n too
    size_t seen = 0;               // bytes of the text that end the input so far

    void step(char c);
  };

  std::vector<Stop> stops_;
  std::string held_;
  int match_ = -1;
};

}  // namespace weir
