// The "normalizer" of tokenizer.json: changes to the text before it is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

class Regex;

struct NormalizerStep {
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kLowercase, kReplace, kPrepend, kStrip };
  Kind kind = Kind::kNfc;
  std::string pattern;                 // kReplace
  std::shared_ptr<const Regex> regex;  // kReplace, instead of pattern
  std::string content;                 // kReplace, kPrepend (which leaves an empty text alone)
  bool left = true, right = true;      // kStrip: at which ends white space goes
};
using Normalizer = std::vector<NormalizerStep>;

// Valid UTF-8 in and out.
std::string normalized(const Normalizer& normalizer, std::string_view text);

}  // namespace weir
