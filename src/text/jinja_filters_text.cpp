// Filters of strings and numbers.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja_filters.h"
#include "text/jinja_strings.h"

namespace weir::jinja {
namespace {

// For filters that go character by character.
void read_characters(Runtime& runtime, const Value& input) {
  if (input.text()) runtime.read(3 * input.text()->size());
}

Value case_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  read_characters(runtime, input);
  const Bound none(runtime, name, arguments, {});
  const Text text = to_text(runtime, input);
  if (name == "upper") return runtime.text(map_case(text, Case::kUpper));
  if (name == "lower") return runtime.text(map_case(text, Case::kLower));
  if (name == "capitalize") return runtime.text(capitalize(text));
  return runtime.text(title(text, false));
}

Value trim_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"chars"});
  return runtime.text(strip(to_text(runtime, input), in.text(0), true, true));
}

Value replace_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"old", "new", "count"});
  const int64_t count = in.has(2) && !in.value(2).is_none() ? in.integer(2, -1) : -1;
  const Text from = to_text(runtime, in.value(0)), to = to_text(runtime, in.value(1));
  return runtime.text(replace(runtime, to_text(runtime, input), from, to, count));
}

Value string_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound none(runtime, name, arguments, {});
  if (name == "pprint") {
    TextBuilder out;
    append_repr(runtime, input, out);
    return runtime.text(out.take());
  }
  return runtime.text(to_text(runtime, input));
}

Value escape_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  read_characters(runtime, input);
  const Bound none(runtime, name, arguments, {});
  return runtime.text(escape_html(to_text(runtime, input)));
}

Value indent_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"width", "first", "blank"});
  Text by;
  if (in.has(0) && in.value(0).text()) {
    by = *in.value(0).text();
  } else {
    by = pad(runtime, Text(), in.integer(0, 4), 0, Text(" ", Origin::kTemplate));
  }
  return runtime.text(indent(runtime, to_text(runtime, input), by, in.truthy(1, false), in.truthy(2, false)));
}

Value center_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"width"});
  const Arguments width{.positional = {in.has(0) ? in.value(0) : Value(80)}};
  return attribute(runtime, Value(to_text(runtime, input)), "center").callable()->call(runtime, width);
}

Value wordcount_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  read_characters(runtime, input);
  const Bound none(runtime, name, arguments, {});
  const Text text = to_text(runtime, input);
  int64_t count = 0;
  bool inside = false;
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    const char32_t c = decode_at(text.bytes(), at, &n);
    const bool word = c == '_' || is_letter(c) || is_number(c);
    count += word && !inside;
    inside = word;
  }
  return count;
}

Value truncate_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"length", "killwords", "end", "leeway"});
  const Text text = to_text(runtime, input);
  const Text end = in.has(2) ? in.needed_text(2) : Text("...", Origin::kTemplate);
  const int64_t length = in.integer(0, 255);
  const int64_t kept = length - static_cast<int64_t>(count_characters(end.bytes()));
  if (kept < 0) runtime.fail("truncate: expected a length of at least that of the end");
  if (static_cast<int64_t>(count_characters(text.bytes())) <= length + in.integer(3, 5)) return runtime.text(text);
  size_t stop = character_offset(text, kept);
  if (!in.truthy(1, false)) {
    const size_t space = text.bytes().rfind(' ', stop == 0 ? 0 : stop - 1);
    if (stop > 0 && space != std::string::npos) stop = space;
  }
  TextBuilder out;
  out.append(text, 0, stop);
  out.append(end);
  return runtime.text(out.take());
}

Value format_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty()) runtime.fail(name, ": positional or named arguments");
  if (arguments.named.empty()) {
    const Value tuple = runtime.list(arguments.positional, true);
    return format_percent(runtime, to_text(runtime, input), tuple);
  }
  Dict dict;
  for (const auto& [key, value] : arguments.named) dict.put(make_text(key, Origin::kTemplate), value);
  return format_percent(runtime, to_text(runtime, input), runtime.dict(std::move(dict)));
}

Value urlencode_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  read_characters(runtime, input);
  const Bound none(runtime, name, arguments, {});
  TextBuilder out;
  const Text text = to_text(runtime, input);
  text.for_each_run(0, text.size(), [&](std::string_view run, Origin origin) {
    static constexpr char kHex[] = "0123456789ABCDEF";
    std::string quoted;
    for (const char c : run) {
      const auto byte = static_cast<unsigned char>(c);
      const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         std::string_view("_.-~/").find(c) != std::string_view::npos;
      if (plain) {
        quoted += c;
      } else {
        quoted += '%';
        quoted += kHex[byte >> 4];
        quoted += kHex[byte & 15];
      }
    }
    out.append(quoted, origin);
  });
  return runtime.text(out.take());
}

// A JSON style from the arguments of json.dumps.
Value tojson_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = in.truthy(0, false);
  style.sort_keys = in.truthy(3, false);
  Text indent;
  if (in.has(1) && !in.value(1).is_none()) {
    if (const Text* text = in.value(1).text()) {
      indent = *text;
    } else {
      indent = pad(runtime, Text(), in.integer(1, 0), 0, Text(" ", Origin::kValue));
    }
    style.indent = &indent;
  }
  style.item_separator = Text(style.indent ? "," : ", ", Origin::kValue);
  style.key_separator = Text(": ", Origin::kValue);
  if (in.has(2) && !in.value(2).is_none()) {
    const List* pair = in.value(2).list();
    if (!pair || pair->items.size() != 2 || !pair->items[0].text() || !pair->items[1].text()) {
      runtime.fail("tojson: 'separators' must be a pair of strings");
    }
    style.item_separator = *pair->items[0].text();
    style.key_separator = *pair->items[1].text();
  }
  TextBuilder out;
  append_json(runtime, input, style, out);
  return runtime.text(out.take());
}

Value abs_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound none(runtime, name, arguments, {});
  if (input.is_undefined()) runtime.fail_undefined(input);
  if (!input.is_number()) runtime.fail("bad operand type for abs(): '", input.type_name(), "'");
  if (input.is_double()) return std::abs(input.number());
  return input.integer() < 0 ? arithmetic(runtime, '-', 0, input) : Value(input.integer());
}

// Python's int("..."): sign, digits, single underscores.
bool parse_integer(std::string_view text, int base, int64_t* out) {
  std::string digits(!text.empty() && text[0] == '-' ? 1 : 0, '-');
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      text.remove_prefix(2);
    }
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const bool inner = text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_';
    if (!inner) digits += text[i];
  }
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, *out, base == 0 ? 10 : base);
  return read.ec == std::errc() && read.ptr == end;
}

bool parse_float(std::string_view text, double* out) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  if (text.empty() || text.starts_with("+")) return false;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), *out);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

Value int_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"default", "base"});
  const Value fallback = in.has(0) ? in.value(0) : Value(0);
  const int64_t base = in.integer(1, 10);
  if (base != 0 && (base < 2 || base > 36)) runtime.fail("int: the base must be 0 or 2 to 36");
  double number = 0;
  if (input.is_number() && !input.is_double()) return input.integer();
  if (input.is_double()) {
    number = input.number();
  } else if (const Text* text = input.text()) {
    const Text plain = strip(*text, nullptr, true, true);
    int64_t integer;
    if (parse_integer(plain.bytes(), static_cast<int>(base), &integer)) return integer;
    if (!parse_float(plain.bytes(), &number)) return fallback;
  } else {
    return fallback;
  }
  return std::abs(number) < 9.2e18 ? Value(static_cast<int64_t>(number)) : fallback;
}

Value float_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"default"});
  if (input.is_number()) return input.number();
  double number = 0;
  if (input.text() && parse_float(strip(*input.text(), nullptr, true, true).bytes(), &number)) return number;
  return in.has(0) ? in.value(0) : Value(0.0);
}

Value round_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"precision", "method"});
  if (!input.is_number()) runtime.fail("round: a number is required, not ", input.type_name());
  const int64_t precision = in.integer(0, 0);
  const std::string method = in.has(1) ? in.needed_text(1).bytes() : "common";
  if (method != "common" && method != "ceil" && method != "floor") {
    runtime.fail("round: the method must be common, ceil or floor");
  }
  if (precision < -300 || precision > 300) runtime.fail("round: the precision must be between -300 and 300");
  if (method == "common" && !input.is_double() && precision >= 0) return Value(input.integer());
  const double number = input.number(), scale = std::pow(10.0, static_cast<double>(precision));
  if (!std::isfinite(number)) return number;
  if (method != "common") {
    return (method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale;
  }
  if (precision < 0) {
    const double rounded = std::nearbyint(number * scale) / scale;
    return input.is_double() ? Value(rounded) : Value(static_cast<int64_t>(rounded));
  }
  char buffer[700];  // printf rounds the exact value, half to even, as Python does
  const int size = std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), number);
  double rounded = number;
  std::from_chars(buffer, buffer + std::min<size_t>(size, sizeof buffer - 1), rounded);
  return rounded;
}

Value default_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"default_value", "boolean"});
  const bool use = input.is_undefined() || (in.truthy(1, false) && !input.truthy());
  if (!use) return input;
  return in.has(0) ? in.value(0) : runtime.text(Text());
}

Value attr_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"name"});
  return own_attribute(runtime, input, in.needed_text(0).bytes());
}

constexpr NamedFilter kFilters[] = {
    {"upper", case_filter},        {"lower", case_filter},    {"capitalize", case_filter},
    {"title", case_filter},        {"trim", trim_filter},     {"replace", replace_filter},
    {"string", string_filter},     {"safe", string_filter},   {"pprint", string_filter},
    {"escape", escape_filter},     {"e", escape_filter},      {"forceescape", escape_filter},
    {"indent", indent_filter},     {"center", center_filter}, {"wordcount", wordcount_filter},
    {"truncate", truncate_filter}, {"format", format_filter}, {"urlencode", urlencode_filter},
    {"tojson", tojson_filter},     {"abs", abs_filter},       {"int", int_filter},
    {"float", float_filter},       {"round", round_filter},   {"default", default_filter},
    {"d", default_filter},         {"attr", attr_filter},
};

}  // namespace

FilterFunction find_text_filter(std::string_view name) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.call;
  }
  return nullptr;
}

}  // namespace weir::jinja
