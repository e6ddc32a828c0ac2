// Python's operators on values.
#include <cmath>
#include <limits>

#include "text/jinja_runtime.h"
#include "text/jinja_strings.h"
#include "text/jinja_value.h"

namespace weir::jinja {
namespace {

bool equal_lists(Runtime& runtime, const List& a, const List& b) {
  if (a.tuple != b.tuple || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(runtime, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Runtime& runtime, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(key);
    if (!other || !equal(runtime, value, *other)) return false;
  }
  return true;
}

[[noreturn]] void fail_operands(Runtime& runtime, std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) runtime.fail_undefined(a);
  if (b.is_undefined()) runtime.fail_undefined(b);
  runtime.fail("unsupported operand types for ", op, ": '", a.type_name(), "' and '", b.type_name(), "'");
}

std::string_view op_name(char op) {
  switch (op) {
    case '^':
      return "**";
    case 'f':
      return "//";
    case '+':
      return "+";
    case '-':
      return "-";
    case '*':
      return "*";
    case '/':
      return "/";
    default:
      return "%";
  }
}

Value integer_power(Runtime& runtime, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) runtime.fail("0 can't be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) runtime.fail("integer too large in **");
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) runtime.fail("integer too large in **");
  }
  return result;
}

Value integer_arithmetic(Runtime& runtime, char op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case '+':
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case '-':
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case '*':
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case '^':
      return integer_power(runtime, a, b);
    case '/':
      if (b == 0) runtime.fail("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    default:
      if (b == 0) runtime.fail("integer division or modulo by zero");
      if (b == -1) {  // INT64_MIN / -1 traps
        if (op == '%') return 0;
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const bool adjust = a % b != 0 && (a < 0) != (b < 0);  // Python rounds down
      return op == '%' ? a % b + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
  }
  if (overflow) runtime.fail("integer too large in ", op_name(op));
  return result;
}

Value float_arithmetic(Runtime& runtime, char op, double a, double b) {
  switch (op) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return a * b;
    case '^':
      if (a < 0 && std::floor(b) != b) runtime.fail("a negative number can't be raised to a fractional power");
      if (a == 0 && b < 0) runtime.fail("0 can't be raised to a negative power");
      return std::pow(a, b);
    default:
      break;
  }
  if (b == 0) runtime.fail("division by zero");
  if (op == '/') return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == '%') return rest == 0 ? std::copysign(0.0, b) : rest;
  return std::floor((a - rest) / b + 0.5);
}

Value repeat(Runtime& runtime, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  if (const Text* text = value.text()) {
    if (!text->empty() && count > static_cast<int64_t>(runtime.limits().string_bytes / text->size())) {
      runtime.fail("a string repeated ", count, " times is too long");
    }
    runtime.charge(text->size() * count);
    TextBuilder out;
    if (!text->empty()) {
      for (int64_t i = 0; i < count; ++i) out.append(*text);
    }
    return runtime.text(out.take());
  }
  const std::vector<Value>& items = value.list()->items;
  if (!items.empty() && count > static_cast<int64_t>(runtime.limits().string_bytes / sizeof(Value) / items.size())) {
    runtime.fail("a list repeated ", count, " times is too long");
  }
  runtime.charge(items.size() * count * sizeof(Value));
  std::vector<Value> out;
  if (!items.empty()) {
    for (int64_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  }
  return runtime.list(std::move(out), value.list()->tuple);
}

int64_t bound_of(Runtime& runtime, const Value& bound, int64_t fallback) {
  if (bound.is_none() || bound.is_undefined()) return fallback;
  if (!bound.is_integer() && !bound.is_bool()) runtime.fail("slice bounds must be integers, not ", bound.type_name());
  return bound.integer();
}

int64_t clamp_bound(int64_t bound, int64_t length, bool backwards) {
  if (bound < 0) bound = bound < -length ? -1 : bound + length;
  if (bound < 0) return backwards ? -1 : 0;
  const int64_t last = backwards ? length - 1 : length;
  return std::min(bound, last);
}

}  // namespace

bool equal(Runtime& runtime, const Value& a, const Value& b) {
  runtime.step();
  if (a.is_number() && b.is_number()) {
    if (!a.is_double() && !b.is_double()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.text() && b.text()) {
    if (a.text()->size() == b.text()->size()) runtime.read(a.text()->size());
    return a.text()->bytes() == b.text()->bytes();
  }
  if (a.list() && b.list()) return equal_lists(runtime, *a.list(), *b.list());
  if (a.dict() && b.dict()) return equal_dicts(runtime, *a.dict(), *b.dict());
  if (a.space() || b.space()) return a.space() == b.space();
  if (a.callable() || b.callable()) return a.callable() == b.callable();
  if (a.loop() || b.loop()) return a.loop() == b.loop();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(Runtime& runtime, const Value& a, const Value& b) {
  runtime.step();
  if (a.is_number() && b.is_number()) {
    if (!a.is_double() && !b.is_double()) return a.integer() < b.integer();
    return a.number() < b.number();
  }
  if (a.text() && b.text()) {
    runtime.read(std::min(a.text()->size(), b.text()->size()));
    return a.text()->bytes() < b.text()->bytes();  // UTF-8 sorts as code points do
  }
  if (a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    const std::vector<Value>&x = a.list()->items, &y = b.list()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(runtime, x[i], y[i])) return less(runtime, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  fail_operands(runtime, "<", a, b);
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (!item.is_text()) {
      if (item.is_undefined()) runtime.fail_undefined(item);
      runtime.fail("'in <string>' requires a string, not ", item.type_name());
    }
    runtime.read(text->size());
    return find_first(text->bytes(), item.text()->bytes(), 0) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find(item) != nullptr;
  if (const List* list = container.list()) {
    for (const Value& part : list->items) {
      if (equal(runtime, part, item)) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  runtime.fail("'in' needs a string or a container, not ", container.type_name());
}

Value arithmetic(Runtime& runtime, char op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_double() || b.is_double()) return float_arithmetic(runtime, op, a.number(), b.number());
    return integer_arithmetic(runtime, op, a.integer(), b.integer());
  }
  if (op == '+' && a.text() && b.text()) {
    TextBuilder out;
    out.append(*a.text());
    out.append(*b.text());
    return runtime.text(out.take());
  }
  if (op == '+' && a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    runtime.charge(b.list()->items.size() * sizeof(Value));
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return runtime.list(std::move(items), a.list()->tuple);
  }
  if (op == '*' && (a.text() || a.list()) && (b.is_integer() || b.is_bool())) return repeat(runtime, a, b.integer());
  if (op == '*' && (b.text() || b.list()) && (a.is_integer() || a.is_bool())) return repeat(runtime, b, a.integer());
  if (op == '%' && a.text()) return format_percent(runtime, *a.text(), b);
  fail_operands(runtime, op_name(op), a, b);
}

Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) runtime.fail_undefined(object);
  if (!object.text() && !object.list()) runtime.fail("'", object.type_name(), "' can't be sliced");
  const int64_t by = bound_of(runtime, step, 1);
  if (by == 0) runtime.fail("slice step can't be zero");
  const int64_t length = length_of(runtime, object);
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  const bool back = by < 0;
  const int64_t first = clamp_bound(bound_of(runtime, start, back ? kFar : 0), length, back);
  const Value& end = stop;
  const int64_t last =
      end.is_none() || end.is_undefined() ? (back ? -1 : length) : clamp_bound(bound_of(runtime, end, 0), length, back);
  if (const Text* text = object.text()) {
    if (by == 1) {
      if (first >= last) return runtime.text(Text());
      if (!text->ascii()) runtime.read(2 * text->size());
      return runtime.text(text->slice(character_offset(*text, first), character_offset(*text, last)));
    }
    runtime.step(length);
    std::vector<size_t> offsets;
    runtime.charge(length * sizeof(size_t));
    for (size_t at = 0, n = 0; at < text->size(); at += n) {
      offsets.push_back(at);
      decode_at(text->bytes(), at, &n);
    }
    offsets.push_back(text->size());
    TextBuilder out;
    for (int64_t i = first; back ? i > last : i < last;) {
      out.append(*text, offsets[i], offsets[i + 1]);
      if (__builtin_add_overflow(i, by, &i)) break;
    }
    return runtime.text(out.take());
  }
  std::vector<Value> out;
  for (int64_t i = first; back ? i > last : i < last;) {
    out.push_back(object.list()->items[i]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return runtime.list(std::move(out), object.list()->tuple);
}

std::vector<Value> items_of(Runtime& runtime, const Value& value) {
  std::vector<Value> out;
  if (value.is_undefined()) return out;
  if (const List* list = value.list()) {
    runtime.charge(list->items.size() * sizeof(Value));
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    runtime.charge(dict->entries.size() * sizeof(Value));
    for (const auto& [key, held] : dict->entries) out.push_back(key);
    return out;
  }
  if (const Text* text = value.text()) {
    for (size_t at = 0, n = 0; at < text->size(); at += n) {
      decode_at(text->bytes(), at, &n);
      out.push_back(runtime.text(text->slice(at, at + n)));
    }
    return out;
  }
  runtime.fail("'", value.type_name(), "' object is not iterable");
}

int64_t length_of(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) return 0;
  if (const List* list = value.list()) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries.size());
  if (const Text* text = value.text()) {
    if (text->ascii()) return static_cast<int64_t>(text->size());
    runtime.read(text->size());
    return static_cast<int64_t>(count_characters(text->bytes()));
  }
  runtime.fail("object of type '", value.type_name(), "' has no len()");
}

}  // namespace weir::jinja
