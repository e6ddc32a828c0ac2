// Values as text: Python's str, repr and json.dumps.
#include <charconv>
#include <cmath>

#include "text/jinja_runtime.h"
#include "text/jinja_sort.h"
#include "text/jinja_unicode.h"
#include "text/jinja_value.h"

namespace weir::jinja {
namespace {

void append_hex(std::string& out, char32_t c, int digits) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kHex[(c >> shift) & 15];
}

void append_text_repr(const Text& text, TextBuilder& out) {
  const std::string& bytes = text.bytes();
  const bool single = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
  const char quote = single ? '"' : '\'';
  out.append({&quote, 1}, Origin::kTemplate);
  text.for_each_run(0, text.size(), [&](std::string_view run, Origin origin) {
    std::string escaped;
    for (size_t at = 0, n = 0; at < run.size(); at += n) {
      const char32_t c = decode_at(run, at, &n);
      if (c == '\\' || c == static_cast<unsigned char>(quote)) {
        escaped += '\\';
        escaped += static_cast<char>(c);
      } else if (c == '\n' || c == '\r' || c == '\t') {
        escaped += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
      } else if (is_printable(c)) {
        escaped += run.substr(at, n);
      } else {
        escaped += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
        append_hex(escaped, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
      }
    }
    out.append(escaped, origin);
  });
  out.append({&quote, 1}, Origin::kTemplate);
}

void append_items(Runtime& runtime, std::string_view open, const std::vector<Value>& items, std::string_view close,
                  TextBuilder& out) {
  out.append(open, Origin::kTemplate);
  bool first = true;
  for (const Value& item : items) {
    if (!first) out.append(", ", Origin::kTemplate);
    first = false;
    append_repr(runtime, item, out);
  }
  out.append(close, Origin::kTemplate);
}

void append_dict_repr(Runtime& runtime, const Dict& dict, TextBuilder& out) {
  out.append("{", Origin::kTemplate);
  bool first = true;
  for (const auto& [key, value] : dict.entries) {
    if (!first) out.append(", ", Origin::kTemplate);
    first = false;
    append_repr(runtime, key, out);
    out.append(": ", Origin::kTemplate);
    append_repr(runtime, value, out);
  }
  out.append("}", Origin::kTemplate);
}

std::string scalar_repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.truthy() ? "True" : "False";
  if (value.is_integer()) return std::to_string(value.integer());
  if (value.is_double()) return float_repr(value.number());
  if (value.space()) return "<Namespace>";
  if (value.callable()) return "<function " + value.callable()->name + ">";
  return "<LoopContext>";
}

void append_json_string(const Text& text, bool ensure_ascii, TextBuilder& out) {
  out.append("\"", Origin::kValue);
  text.for_each_run(0, text.size(), [&](std::string_view run, Origin origin) {
    std::string escaped;
    for (size_t at = 0, n = 0; at < run.size(); at += n) {
      const char32_t c = decode_at(run, at, &n);
      if (c == '"' || c == '\\') {
        escaped += '\\';
        escaped += static_cast<char>(c);
      } else if (c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f') {
        escaped += '\\';
        escaped += c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c == '\b' ? 'b' : 'f';
      } else if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
        escaped += "\\u";
        append_hex(escaped, c, 4);
      } else if (ensure_ascii && c >= 0x10000) {
        escaped += "\\u";
        append_hex(escaped, 0xD800 + ((c - 0x10000) >> 10), 4);
        escaped += "\\u";
        append_hex(escaped, 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
      } else {
        escaped += run.substr(at, n);
      }
    }
    out.append(escaped, origin);
  });
  out.append("\"", Origin::kValue);
}

class JsonPrinter {
 public:
  JsonPrinter(Runtime& runtime, const JsonStyle& style, TextBuilder& out)
      : runtime_(runtime), style_(style), out_(out) {}

  void print(const Value& value, int level) {
    runtime_.step();
    if (const Text* text = value.text()) {
      runtime_.read(text->size());
      return append_json_string(*text, style_.ensure_ascii, out_);
    }
    if (const List* list = value.list()) return print_list(*list, level);
    if (const Dict* dict = value.dict()) return print_dict(*dict, level);
    out_.append(scalar(value), Origin::kValue);
  }

 private:
  std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is_bool()) return value.truthy() ? "true" : "false";
    if (value.is_integer()) return std::to_string(value.integer());
    if (value.is_double()) {
      const double number = value.number();
      if (std::isnan(number)) return "NaN";
      if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
      return float_repr(number);
    }
    if (value.is_undefined()) runtime_.fail_undefined(value);
    runtime_.fail("object of type ", value.type_name(), " is not JSON serializable");
  }

  void break_line(int level) {
    if (!style_.indent) return;
    runtime_.charge(style_.indent->size() * level + 1);
    out_.append("\n", Origin::kValue);
    for (int i = 0; i < level; ++i) out_.append(*style_.indent);
  }

  void print_list(const List& list, int level) {
    if (list.items.empty()) return out_.append("[]", Origin::kValue);
    out_.append("[", Origin::kValue);
    bool first = true;
    for (const Value& item : list.items) {
      if (!first) out_.append(style_.item_separator);
      first = false;
      break_line(level + 1);
      print(item, level + 1);
    }
    break_line(level);
    out_.append("]", Origin::kValue);
  }

  void print_dict(const Dict& dict, int level) {
    if (dict.entries.empty()) return out_.append("{}", Origin::kValue);
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      merge_sort(entries, [&](const auto* a, const auto* b) { return less(runtime_, a->first, b->first); });
    }
    out_.append("{", Origin::kValue);
    bool first = true;
    for (const auto* entry : entries) {
      if (!first) out_.append(style_.item_separator);
      first = false;
      break_line(level + 1);
      if (const Text* key = entry->first.text()) {
        append_json_string(*key, style_.ensure_ascii, out_);
      } else if (entry->first.list()) {
        runtime_.fail("keys must be str, int, float, bool or None, not tuple");
      } else {
        out_.append("\"" + scalar(entry->first) + "\"", Origin::kValue);
      }
      out_.append(style_.key_separator);
      print(entry->second, level + 1);
    }
    break_line(level);
    out_.append("}", Origin::kValue);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  TextBuilder& out_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return text;  // to_chars writes at least two digits of exponent, as Python does
  std::string digits;
  const bool negative = text[0] == '-';
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = negative ? "-" : "";
  if (exponent < 0) return out + "0." + std::string(-exponent - 1, '0') + digits;
  if (static_cast<int>(digits.size()) <= exponent + 1) {
    return out + digits + std::string(exponent + 1 - digits.size(), '0') + ".0";
  }
  return out + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

void append_repr(Runtime& runtime, const Value& value, TextBuilder& out) {
  runtime.step();
  runtime.charge(value.text() ? value.text()->size() : 8);
  if (const Text* text = value.text()) {
    append_text_repr(*text, out);
  } else if (const List* list = value.list()) {
    const bool single = list->tuple && list->items.size() == 1;
    append_items(runtime, list->tuple ? "(" : "[", list->items, single ? ",)" : list->tuple ? ")" : "]", out);
  } else if (const Dict* dict = value.dict()) {
    append_dict_repr(runtime, *dict, out);
  } else {
    out.append(scalar_repr(value), Origin::kTemplate);
  }
}

void append_text(Runtime& runtime, const Value& value, TextBuilder& out) {
  if (value.is_undefined()) return;
  if (const Text* text = value.text()) {
    runtime.charge(text->size());
    out.append(*text);
  } else {
    append_repr(runtime, value, out);
  }
}

Text to_text(Runtime& runtime, const Value& value) {
  if (value.text()) return *value.text();
  TextBuilder out;
  append_text(runtime, value, out);
  return out.take();
}

void append_json(Runtime& runtime, const Value& value, const JsonStyle& style, TextBuilder& out) {
  const size_t before = out.size();
  JsonPrinter(runtime, style, out).print(value, 0);
  runtime.charge(out.size() - before);
}

}  // namespace weir::jinja
