#include "text/json_automaton.h"

#include <string_view>

namespace weir {
namespace {

bool is_space(unsigned char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
bool is_hex(unsigned char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool between(unsigned char c, unsigned char least, unsigned char most) { return c >= least && c <= most; }

}  // namespace

JsonAutomaton JsonAutomaton::probe(Mode mode, bool in_object, bool in_key, bool run_over, int depth) {
  JsonAutomaton out;
  out.mode_ = mode;
  out.depth_ = static_cast<uint8_t>(depth);
  if (in_object && depth > 0) out.objects_ = uint64_t{1} << (depth - 1);
  out.in_key_ = in_key;
  out.run_ = run_over ? kMaxRun : 0;
  out.run_over_ = run_over;
  return out;
}

bool JsonAutomaton::push(unsigned char byte) {
  const Mode before = mode_;
  const bool in_digits = mode_ == Mode::kDigits || mode_ == Mode::kFraction;
  const bool counts = (mode_ < Mode::kString && is_space(byte)) || (in_digits && is_digit(byte));
  if (mode_ < Mode::kString       ? !structure(byte)
      : mode_ <= Mode::kUtfF4     ? !string(byte)
      : mode_ <= Mode::kExponent2 ? !number(byte)
                                  : !literal(byte)) {
    return false;
  }
  if (counts && before == mode_) {
    if (run_ < kMaxRun) ++run_;
  } else {
    run_ = 0;
    run_over_ = false;
  }
  return true;
}

bool JsonAutomaton::structure(unsigned char byte) {
  if (is_space(byte)) return !run_over_;
  switch (mode_) {
    case Mode::kStart:
      return byte == '{' && open(true);
    case Mode::kFirstKey:
      if (byte == '}') return close(true);
      [[fallthrough]];
    case Mode::kKey:
      in_key_ = true;
      return byte == '"' && to(Mode::kString);
    case Mode::kColon:
      return byte == ':' && to(Mode::kValue);
    case Mode::kFirstValue:
      if (byte == ']') return close(false);
      [[fallthrough]];
    case Mode::kValue:
      return value(byte);
    default:
      return after_value(byte);
  }
}

bool JsonAutomaton::value(unsigned char byte) {
  switch (byte) {
    case '{':
      return open(true);
    case '[':
      return open(false);
    case '"':
      in_key_ = false;
      return to(Mode::kString);
    case '-':
      return to(Mode::kMinus);
    case '0':
      return to(Mode::kZero);
    case 't':
      return to(Mode::kT);
    case 'f':
      return to(Mode::kF);
    case 'n':
      return to(Mode::kN);
    default:
      return is_digit(byte) && to(Mode::kDigits);
  }
}

bool JsonAutomaton::after_value(unsigned char byte) {
  if (is_space(byte)) return to(Mode::kAfterValue);  // of a number that it ends
  if (byte == ',') return to(in_object() ? Mode::kKey : Mode::kValue);
  if (byte == '}') return close(true);
  return byte == ']' && close(false);
}

bool JsonAutomaton::open(bool object) {
  if (depth_ == kMaxDepth) return false;
  const uint64_t bit = uint64_t{1} << depth_;
  objects_ = object ? objects_ | bit : objects_ & ~bit;
  ++depth_;
  return to(object ? Mode::kFirstKey : Mode::kFirstValue);
}

bool JsonAutomaton::close(bool object) {
  if (in_object() != object) return false;
  --depth_;
  return to(depth_ == 0 ? Mode::kDone : Mode::kAfterValue);
}

bool JsonAutomaton::string(unsigned char byte) {
  if (mode_ > Mode::kString) return mode_ >= Mode::kUtf1 ? character(byte) : escape(byte);
  if (byte == '"') return to(in_key_ ? Mode::kColon : Mode::kAfterValue);
  if (byte == '\\') return to(Mode::kEscape);
  if (byte < 0x80) return byte >= 0x20;
  if (between(byte, 0xC2, 0xDF)) return to(Mode::kUtf1);
  if (byte == 0xE0) return to(Mode::kUtfE0);
  if (byte == 0xED) return to(Mode::kUtfED);
  if (between(byte, 0xE1, 0xEF)) return to(Mode::kUtf2);
  if (byte == 0xF0) return to(Mode::kUtfF0);
  if (between(byte, 0xF1, 0xF3)) return to(Mode::kUtf3);
  return byte == 0xF4 && to(Mode::kUtfF4);
}

bool JsonAutomaton::character(unsigned char byte) {
  switch (mode_) {
    case Mode::kUtf1:
      return between(byte, 0x80, 0xBF) && to(Mode::kString);
    case Mode::kUtf2:
      return between(byte, 0x80, 0xBF) && to(Mode::kUtf1);
    case Mode::kUtf3:
      return between(byte, 0x80, 0xBF) && to(Mode::kUtf2);
    case Mode::kUtfE0:  // no overlong forms
      return between(byte, 0xA0, 0xBF) && to(Mode::kUtf1);
    case Mode::kUtfED:  // no surrogates
      return between(byte, 0x80, 0x9F) && to(Mode::kUtf1);
    case Mode::kUtfF0:
      return between(byte, 0x90, 0xBF) && to(Mode::kUtf2);
    default:  // kUtfF4: nothing above U+10FFFF
      return between(byte, 0x80, 0x8F) && to(Mode::kUtf2);
  }
}

bool JsonAutomaton::escape(unsigned char byte) {
  const auto next = [&] { return static_cast<Mode>(static_cast<int>(mode_) + 1); };
  switch (mode_) {
    case Mode::kEscape:
      if (byte == 'u') return to(Mode::kHex1);
      return std::string_view("\"\\/bfnrt").find(static_cast<char>(byte)) != std::string_view::npos &&
             to(Mode::kString);
    case Mode::kHex1:
      if (byte == 'd' || byte == 'D') return to(Mode::kHighHex2);
      return is_hex(byte) && to(Mode::kHex2);
    case Mode::kHighHex2:
      if (is_digit(byte) && byte < '8') return to(Mode::kHex3);
      return is_hex(byte) && (byte == '8' || byte == '9' || between(byte | 0x20, 'a', 'b')) && to(Mode::kHighHex3);
    case Mode::kHex4:
    case Mode::kLowHex4:
      return is_hex(byte) && to(Mode::kString);
    case Mode::kLowBackslash:
      return byte == '\\' && to(Mode::kLowU);
    case Mode::kLowU:
      return byte == 'u' && to(Mode::kLowHex1);
    case Mode::kLowHex1:
      return (byte | 0x20) == 'd' && to(Mode::kLowHex2);
    case Mode::kLowHex2:
      return between(byte | 0x20, 'c', 'f') && to(Mode::kLowHex3);
    default:
      return is_hex(byte) && to(next());
  }
}

bool JsonAutomaton::number(unsigned char byte) {
  switch (mode_) {
    case Mode::kMinus:
      if (byte == '0') return to(Mode::kZero);
      return is_digit(byte) && to(Mode::kDigits);
    case Mode::kPoint:
      return is_digit(byte) && to(Mode::kFraction);
    case Mode::kE:
      if (byte == '+' || byte == '-') return to(Mode::kESign);
      [[fallthrough]];
    case Mode::kESign:
      return is_digit(byte) && to(Mode::kExponent1);
    case Mode::kExponent1:
      if (is_digit(byte)) return to(Mode::kExponent2);
      return after_value(byte);
    case Mode::kExponent2:
      return after_value(byte);
    default:  // kZero, kDigits, kFraction
      break;
  }
  if (is_digit(byte)) return mode_ != Mode::kZero && !run_over_;
  if (byte == '.' && mode_ != Mode::kFraction) return to(Mode::kPoint);
  if (byte == 'e' || byte == 'E') return to(Mode::kE);
  return after_value(byte);
}

bool JsonAutomaton::literal(unsigned char byte) {
  static constexpr char kNext[] =
      "rue"
      "alse"
      "ull";  // what follows kT ... kNul
  const int at = static_cast<int>(mode_) - static_cast<int>(Mode::kT);
  if (mode_ == Mode::kDone || byte != static_cast<unsigned char>(kNext[at])) return false;
  const bool last = mode_ == Mode::kTru || mode_ == Mode::kFals || mode_ == Mode::kNul;
  return to(last ? Mode::kAfterValue : static_cast<Mode>(static_cast<int>(mode_) + 1));
}

}  // namespace weir
