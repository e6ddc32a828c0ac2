// From token texts to text: the "decoder" of tokenizer.json as a chain of steps, for whole sequences and for streams.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_unicode.h"

namespace weir {

class Regex;

// A chain works on a list of strings, one per token at first; what leaves the last step is joined.
struct DecoderStep {
  enum class Kind {
    kBytes,         // the strings are bytes: join, make valid UTF-8 (ByteLevel, and vocabularies of bytes)
    kReplace,       // in each string
    kByteFallback,  // "<0xE2>" is a byte; a run of them is a string
    kFuse,          // join
    kStrip,         // up to `start` leading and `stop` trailing characters `pattern` of each string
    kMetaspace,     // `pattern` is a space, and nothing in the first string when `drop_first`
    kSpaces,        // a space between strings (files without a decoder)
  };
  Kind kind = Kind::kFuse;
  std::string pattern;                 // kReplace, kStrip (one character), kMetaspace
  std::shared_ptr<const Regex> regex;  // kReplace, instead of pattern
  std::string content;                 // kReplace
  size_t start = 0, stop = 0;          // kStrip
  bool drop_first = false;             // kMetaspace
};
using Decoder = std::vector<DecoderStep>;

// The state of a chain between tokens.
class DecodeRun {
 public:
  // `eager`: text leaves as soon as it is complete. Else byte runs are judged as a whole (see StreamDecoder).
  DecodeRun(const Decoder& decoder, bool eager);

  void push(std::string_view token, std::string& out);
  void finish(std::string& out);  // and begin anew

 private:
  struct State {
    std::string held;      // bytes of an unfinished run, or characters that may be stripped at the end
    Utf8Repair repair;     // kBytes
    bool started = false;  // a string was seen
    size_t stripped = 0;   // characters taken off the front of the current string
    bool at_front = true;  // of the current string: still inside the part to strip
  };
  // A string, or when `continues` more of the one before.
  void feed(size_t step, std::string_view text, bool continues, std::string& out);
  void flush_bytes(size_t step, std::string& out);
  void byte_fallback(size_t step, std::string_view text, bool continues, std::string& out);
  void strip(size_t step, std::string_view text, bool continues, std::string& out);

  const Decoder* decoder_;
  bool eager_;
  std::vector<State> states_;
};

}  // namespace weir
