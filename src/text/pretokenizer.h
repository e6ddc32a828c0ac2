// The "pre_tokenizer" of tokenizer.json: text into pieces that the model encodes one by one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_regex.h"

namespace weir {

struct PreTokenizerStep {
  enum class Kind {
    kSplit,        // by matches of a regular expression
    kPrefixSpace,  // a space in front of each piece that has none (ByteLevel)
    kMetaspace,    // spaces become `replacement`, and one goes in front
  };
  // What becomes of the matches.
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prefix { kNever, kFirst, kAlways };  // kFirst: only at the start of the whole text

  Kind kind = Kind::kSplit;
  std::shared_ptr<const Regex> regex;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // what lies between the matches plays their part
  std::string replacement;
  Prefix prefix = Prefix::kNever;
};
using PreTokenizer = std::vector<PreTokenizerStep>;

// A text and where its pieces lie in it.
struct Pieces {
  struct Range {
    size_t begin = 0, end = 0;
  };
  std::string text;
  std::vector<Range> ranges;

  std::string_view piece(const Range& range) const {
    return std::string_view(text).substr(range.begin, range.end - range.begin);
  }
};

// `text` is valid UTF-8; `starts_text`: nothing comes before it.
Pieces pieces_of(const PreTokenizer& pre_tokenizer, std::string text, bool starts_text);

}  // namespace weir
