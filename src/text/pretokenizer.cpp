#include "text/pretokenizer.h"

#include <optional>

#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

using Step = PreTokenizerStep;
using Range = Pieces::Range;

// Collects the parts of a piece, which come from left to right, by the step's behaviour.
class Joiner {
 public:
  Joiner(Step::Behavior behavior, std::vector<Range>& out) : behavior_(behavior), out_(out) {}

  void begin_piece() {
    fresh_ = true;
    previous_match_ = false;
  }

  void add(size_t begin, size_t end, bool match) {
    switch (behavior_) {
      case Step::Behavior::kIsolated:
        put(begin, end);
        break;
      case Step::Behavior::kRemoved:
        if (!match) put(begin, end);
        break;
      case Step::Behavior::kContiguous:
        put(begin, end, !fresh_ && match == previous_match_);
        break;
      case Step::Behavior::kMergedWithPrevious:
        put(begin, end, !fresh_ && match && !previous_match_);
        break;
      case Step::Behavior::kMergedWithNext:
        put(begin, end, !fresh_ && !match && previous_match_);
        break;
    }
    fresh_ = false;
    previous_match_ = match;
  }

 private:
  void put(size_t begin, size_t end, bool join = false) {
    if (join && !out_.empty() && out_.back().end == begin) {
      out_.back().end = end;
    } else if (begin != end) {
      out_.push_back({begin, end});
    }
  }

  Step::Behavior behavior_;
  std::vector<Range>& out_;
  bool fresh_ = true;  // no part of the piece yet
  bool previous_match_ = false;
};

void split(const Step& step, Pieces& pieces) {
  std::vector<Range> parts;
  parts.reserve(pieces.ranges.size() + pieces.text.size() / 4);
  Joiner joiner(step.behavior, parts);
  Regex::Search search(*step.regex, {});
  for (const Range& range : pieces.ranges) {
    const std::string_view piece = pieces.piece(range);
    joiner.begin_piece();
    search.reset(piece);
    size_t done = 0;
    for (RegexMatch match; search.next(match); done = match.end) {
      if (match.begin > done) joiner.add(range.begin + done, range.begin + match.begin, step.invert);
      joiner.add(range.begin + match.begin, range.begin + match.end, !step.invert);
    }
    if (done < piece.size()) joiner.add(range.begin + done, range.end, step.invert);
  }
  pieces.ranges = std::move(parts);
}

void metaspace(const Step& step, bool starts_text, Pieces& pieces) {
  Pieces out;
  for (const Range& range : pieces.ranges) {
    const std::string_view piece = pieces.piece(range);
    const size_t begin = out.text.size();
    const bool wanted = step.prefix == Step::Prefix::kAlways ||
                        (step.prefix == Step::Prefix::kFirst && starts_text && range.begin == 0);
    if (wanted && !piece.starts_with(' ') && !piece.starts_with(step.replacement)) out.text += step.replacement;
    for (char c : piece) {
      if (c == ' ') {
        out.text += step.replacement;
      } else {
        out.text += c;
      }
    }
    out.ranges.push_back({begin, out.text.size()});
  }
  pieces = std::move(out);
}

void prefix_space(Pieces& pieces) {
  Pieces out;
  for (const Range& range : pieces.ranges) {
    const size_t begin = out.text.size();
    if (!pieces.piece(range).starts_with(' ')) out.text += ' ';
    out.text += pieces.piece(range);
    out.ranges.push_back({begin, out.text.size()});
  }
  pieces = std::move(out);
}

}  // namespace

Pieces pieces_of(const PreTokenizer& pre_tokenizer, std::string text, bool starts_text) {
  Pieces pieces;
  pieces.text = std::move(text);
  if (pieces.text.empty()) return pieces;
  pieces.ranges.push_back({0, pieces.text.size()});
  for (const Step& step : pre_tokenizer) {
    switch (step.kind) {
      case Step::Kind::kSplit:
        split(step, pieces);
        break;
      case Step::Kind::kPrefixSpace:
        prefix_space(pieces);
        break;
      case Step::Kind::kMetaspace:
        metaspace(step, starts_text, pieces);
        break;
    }
  }
  return pieces;
}

}  // namespace weir
