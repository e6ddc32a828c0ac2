// Python's format % arguments.
#include <cmath>
#include <cstdio>
#include <optional>

#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"
#include "text/jinja_value.h"

namespace weir::jinja {
namespace {

constexpr int kMaxWidth = 10'000;

struct Directive {
  std::string flags;
  int width = 0;
  int precision = -1;
  char kind = 's';
};

// "+5", "-5" or "5" padded as the flags say.
std::string format_number(Runtime& runtime, const Directive& d, const Value& value) {
  if (!value.is_number()) runtime.fail("%", d.kind, " format: a number is required, not ", value.type_name());
  std::string pattern = "%" + d.flags + "*.*";
  if (d.precision < 0) pattern = "%" + d.flags + "*";
  const bool whole = std::string_view("dixXo").find(d.kind) != std::string_view::npos;
  if (whole) {
    if (value.is_double() && !(std::abs(value.number()) < 9e18)) runtime.fail("%", d.kind, " format: number too large");
    const auto integer = value.is_double() ? static_cast<int64_t>(value.number()) : value.integer();
    const bool hex = d.kind == 'x' || d.kind == 'X' || d.kind == 'o';
    if (hex && integer < 0) runtime.fail("%", d.kind, " format of a negative number is not supported");
    pattern += "ll";
    pattern += d.kind == 'i' ? 'd' : d.kind;
    std::string out(d.width + std::max(d.precision, 0) + 64, '\0');
    const auto number = static_cast<long long>(integer);
    out.resize(d.precision < 0 ? std::snprintf(out.data(), out.size(), pattern.c_str(), d.width, number)
                               : std::snprintf(out.data(), out.size(), pattern.c_str(), d.width, d.precision, number));
    return out;
  }
  pattern += d.kind;
  std::string out(d.width + std::max(d.precision, 0) + 400, '\0');  // %f of the largest double has 309 digits
  const double number = value.number();
  out.resize(d.precision < 0 ? std::snprintf(out.data(), out.size(), pattern.c_str(), d.width, number)
                             : std::snprintf(out.data(), out.size(), pattern.c_str(), d.width, d.precision, number));
  return out;
}

class PercentFormat {
 public:
  PercentFormat(Runtime& runtime, const Text& format, const Value& arguments)
      : runtime_(runtime), format_(format), bytes_(format.bytes()), arguments_(arguments) {}

  Value run() {
    size_t at = 0;
    while (at < bytes_.size()) {
      const size_t percent = std::min(bytes_.find('%', at), bytes_.size());
      out_.append(format_, at, percent);
      at = percent;
      if (at < bytes_.size()) at = directive(at);
    }
    const List* list = arguments_.list();
    if (list && list->tuple ? next_ < list->items.size() : next_ == 0 && !arguments_.dict() && !used_key_) {
      runtime_.fail("not all arguments converted during string formatting");
    }
    return runtime_.text(out_.take());
  }

 private:
  char at(size_t i) const { return i < bytes_.size() ? bytes_[i] : '\0'; }

  size_t directive(size_t begin) {
    size_t i = begin + 1;
    if (at(i) == '%') {
      out_.append(format_, i, i + 1);
      return i + 1;
    }
    std::optional<Value> keyed;
    if (at(i) == '(') {
      const size_t close = bytes_.find(')', i);
      if (close == std::string::npos || !arguments_.dict()) runtime_.fail("%(name) format needs a mapping");
      const std::string key = bytes_.substr(i + 1, close - i - 1);
      const Value* found = arguments_.dict()->find(std::string_view(key));
      if (!found) runtime_.fail("%(name) format: no key ", printable(key));
      keyed = *found;
      used_key_ = true;
      i = close + 1;
    }
    Directive d;
    while (std::string_view("-+ #0").find(at(i)) != std::string_view::npos && at(i) != '\0') {
      if (d.flags.find(at(i)) == std::string::npos) d.flags += at(i);
      ++i;
    }
    d.width = number(&i);
    if (at(i) == '.') {
      ++i;
      d.precision = number(&i);
    }
    d.kind = at(i);
    if (d.kind == '\0' || std::string_view("sradixXofFeEgGc").find(d.kind) == std::string_view::npos) {
      runtime_.fail("unsupported format character ", printable(bytes_.substr(i, 1)));
    }
    put(d, keyed ? *keyed : next());
    return i + 1;
  }

  int number(size_t* i) {
    int value = 0;
    if (at(*i) == '*') runtime_.fail("'*' in a format is not supported");
    while (at(*i) >= '0' && at(*i) <= '9') {
      value = value * 10 + (at((*i)++) - '0');
      if (value > kMaxWidth) runtime_.fail("format width above ", kMaxWidth);
    }
    return value;
  }

  Value next() {
    const List* list = arguments_.list();
    if (list && list->tuple) {
      if (next_ >= list->items.size()) runtime_.fail("not enough arguments for format string");
      return list->items[next_++];
    }
    if (next_++ > 0) runtime_.fail("not enough arguments for format string");
    return arguments_;
  }

  void put(const Directive& d, const Value& value) {
    runtime_.step();
    runtime_.charge(d.width);
    if (std::string_view("srac").find(d.kind) == std::string_view::npos) {
      return out_.append(format_number(runtime_, d, value), Origin::kTemplate);
    }
    TextBuilder plain;
    if (d.kind == 'c' && value.is_integer()) {
      std::string c;
      append_utf8(c, static_cast<char32_t>(std::clamp<int64_t>(value.integer(), 0, 0x110000)));
      plain.append(c, Origin::kValue);
    } else if (d.kind == 's' || d.kind == 'c') {
      append_text(runtime_, value, plain);
    } else {
      append_repr(runtime_, value, plain);
    }
    Text text = plain.take();
    if (d.precision >= 0) text = text.slice(0, character_offset(text, d.precision));
    const auto characters = static_cast<int>(std::min<size_t>(count_characters(text.bytes()), kMaxWidth));
    const std::string padding(std::max(0, d.width - characters), ' ');
    const bool left = d.flags.find('-') != std::string::npos;
    if (!left) out_.append(padding, Origin::kTemplate);
    out_.append(text);
    if (left) out_.append(padding, Origin::kTemplate);
  }

  Runtime& runtime_;
  const Text& format_;
  const std::string& bytes_;
  const Value& arguments_;
  TextBuilder out_;
  size_t next_ = 0;
  bool used_key_ = false;
};

}  // namespace

Value format_percent(Runtime& runtime, const Text& format, const Value& arguments) {
  return PercentFormat(runtime, format, arguments).run();
}

}  // namespace weir::jinja
