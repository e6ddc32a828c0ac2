// Which bytes may follow in a text that is one JSON object (RFC 8259): a pushdown automaton in 16 bytes, so that a
// position can be copied and tried.
//
// It is narrower than the standard where a generated text needs a bound, or readers disagree: objects and arrays nest
// at most 64 deep; runs of white space, and of digits, are bounded (begin_token()); exponents have at most two digits,
// so that every number is a finite double; \u escapes of surrogates come in pairs; nothing follows the object.
#pragma once

#include <cstdint>

namespace weir {

class JsonAutomaton {
 public:
  static constexpr int kMaxDepth = 64;
  static constexpr int kMaxRun = 128;

  // Where in the grammar. Numbers and literals: after their first byte.
  enum class Mode : uint8_t {
    kStart,       // before the object
    kFirstKey,    // after {
    kKey,         // after a comma in an object
    kColon,       // after a key
    kFirstValue,  // after [
    kValue,       // after a colon, or a comma in an array
    kAfterValue,
    kString,
    kEscape,
    kHex1,
    kHex2,
    kHex3,
    kHex4,
    kHighHex2,
    kHighHex3,
    kHighHex4,  // \uD seen: of any surrogate, then of a high one
    kLowBackslash,
    kLowU,
    kLowHex1,
    kLowHex2,
    kLowHex3,
    kLowHex4,  // the low one that must follow
    kUtf1,
    kUtf2,
    kUtf3,  // so many bytes of a character are missing
    kUtfE0,
    kUtfED,
    kUtfF0,
    kUtfF4,  // after that byte, whose next one is restricted
    kMinus,
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kE,
    kESign,
    kExponent1,
    kExponent2,
    kT,
    kTr,
    kTru,
    kF,
    kFa,
    kFal,
    kFals,
    kN,
    kNu,
    kNul,
    kDone,
  };
  static constexpr int kModes = static_cast<int>(Mode::kDone) + 1;

  // False: the byte can't come here, and the object is of no further use.
  bool push(unsigned char byte);

  // Runs are bounded at the borders of tokens: a run that has kMaxRun bytes or more when a token begins is at its end.
  void begin_token() { run_over_ = run_ >= kMaxRun; }

  bool done() const { return mode_ == Mode::kDone; }
  Mode mode() const { return mode_; }
  int depth() const { return depth_; }
  bool in_object() const { return (objects_ >> (depth_ - 1) & 1) != 0; }  // the innermost is an object; depth() > 0
  bool in_key() const { return in_key_; }
  bool run_over() const { return run_over_; }

  // A position at `depth` whose innermost container is given and whose outer ones are arrays: for trying what doesn't
  // depend on them.
  static JsonAutomaton probe(Mode mode, bool in_object, bool in_key, bool run_over, int depth);

 private:
  bool structure(unsigned char byte);  // between values
  bool value(unsigned char byte);      // the first byte of one
  bool string(unsigned char byte);
  bool escape(unsigned char byte);
  bool character(unsigned char byte);  // of UTF-8, after its first byte
  bool number(unsigned char byte);
  bool literal(unsigned char byte);
  bool after_value(unsigned char byte);
  bool open(bool object);
  bool close(bool object);
  bool to(Mode mode) {
    mode_ = mode;
    return true;
  }

  uint64_t objects_ = 0;  // bit i: the container at depth i + 1 is an object
  uint8_t depth_ = 0;
  Mode mode_ = Mode::kStart;
  uint8_t run_ = 0;  // bytes of white space, or digits, in a row; saturated
  bool in_key_ = false, run_over_ = false;
};

}  // namespace weir
