// Attributes, items and methods of values. Methods that would change a value don't exist, as in Jinja's sandbox.
#include <algorithm>

#include "text/jinja_arguments.h"
#include "text/jinja_runtime.h"
#include "text/jinja_strings.h"

namespace weir::jinja {
namespace {

Value texts(Runtime& runtime, std::vector<Text> parts, bool tuple = false) {
  std::vector<Value> items;
  for (Text& part : parts) items.push_back(runtime.text(std::move(part)));
  return runtime.list(std::move(items), tuple);
}

// str.find and its kin: `start` and `end` in characters; the result in characters, -1 when absent.
int64_t find(const Text& text, const Bound& in, bool last) {
  const Text& part = in.needed_text(0);
  const int64_t length = static_cast<int64_t>(text.ascii() ? text.size() : count_characters(text.bytes()));
  const auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + length : at, 0, length); };
  if (in.integer(1, 0) > length) return -1;
  const size_t begin = character_offset(text, clamp(in.integer(1, 0)));
  const size_t end = character_offset(text, clamp(in.integer(2, length)));
  if (begin > end || end - begin < part.size()) return -1;
  const std::string_view window = std::string_view(text.bytes()).substr(0, end);
  const size_t at = last ? find_last(window, part.bytes()) : find_first(window, part.bytes(), begin);
  if (at == std::string_view::npos || at < begin) return -1;
  return static_cast<int64_t>(count_characters(window.substr(0, at)));
}

bool starts_or_ends(Runtime& runtime, const Text& text, const Arguments& arguments, bool starts) {
  const Bound in(runtime, starts ? "startswith" : "endswith", arguments, {"prefix", "start", "end"});
  Text window = text;
  if (in.has(1)) {
    const Value cut = slice(runtime, Value(text), in.value(1), in.has(2) ? in.value(2) : Value(None{}), None{});
    window = *cut.text();
  }
  const auto matches = [&](const Value& part) {
    if (!part.text()) runtime.fail(starts ? "startswith" : "endswith", " needs a string, not ", part.type_name());
    const std::string& bytes = part.text()->bytes();
    return starts ? window.bytes().starts_with(bytes) : window.bytes().ends_with(bytes);
  };
  const List* any = in.value(0).list();
  if (!any || !any->tuple) return matches(in.value(0));
  return std::any_of(any->items.begin(), any->items.end(), matches);
}

template <class F>
bool all_characters(const Text& text, F f) {
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    if (!f(decode_at(text.bytes(), at, &n))) return false;
  }
  return !text.empty();
}

bool has_case(const Text& text, bool upper) {
  bool cased = false;
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    const char32_t c = decode_at(text.bytes(), at, &n);
    if (is_title(c) || (upper ? is_lower(c) : is_upper(c))) return false;
    cased |= is_cased(c);
  }
  return cased;
}

bool is_title_text(const Text& text) {
  bool cased = false, inside = false;
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    const char32_t c = decode_at(text.bytes(), at, &n);
    if (is_lower(c) ? !inside : (is_upper(c) || is_title(c)) && inside) return false;
    inside = is_cased(c);
    cased |= inside;
  }
  return cased;
}

Value partition(Runtime& runtime, const Text& text, const Text& separator, bool last) {
  if (separator.empty()) runtime.fail("empty separator");
  const size_t at = last ? find_last(text.bytes(), separator.bytes()) : find_first(text.bytes(), separator.bytes(), 0);
  if (at == std::string::npos) {
    return last ? texts(runtime, {Text(), Text(), text}, true) : texts(runtime, {text, Text(), Text()}, true);
  }
  const size_t end = at + separator.size();
  return texts(runtime, {text.slice(0, at), text.slice(at, end), text.slice(end, text.size())}, true);
}

Value justify(Runtime& runtime, const std::string& name, const Text& text, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"width", "fill"});
  const Text fill = in.has(1) ? in.needed_text(1) : Text(" ", Origin::kTemplate);
  if (count_characters(fill.bytes()) != 1) runtime.fail(name, ": the fill character must be one character long");
  const int64_t width = std::max<int64_t>(in.integer(0, 0), 0);
  const int64_t room = std::max<int64_t>(width - static_cast<int64_t>(count_characters(text.bytes())), 0);
  if (name == "ljust") return runtime.text(pad(runtime, text, 0, room, fill));
  if (name == "rjust") return runtime.text(pad(runtime, text, room, 0, fill));
  const int64_t left = room / 2 + (room & width & 1);  // where CPython puts the odd one
  return runtime.text(pad(runtime, text, left, room - left, fill));
}

Value zero_fill(Runtime& runtime, const Text& text, int64_t width) {
  const int64_t room = width - static_cast<int64_t>(count_characters(text.bytes()));
  if (room <= 0) return Value(text);
  const bool sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  TextBuilder out;
  out.append(text, 0, sign ? 1 : 0);
  out.append(pad(runtime, text.slice(sign ? 1 : 0, text.size()), room, 0, Text("0", Origin::kTemplate)));
  return runtime.text(out.take());
}

using Method = Value (*)(Runtime&, const std::string& name, const Text&, const Arguments&);

Value case_method(Runtime& runtime, const std::string& name, const Text& text, const Arguments& arguments) {
  runtime.read(3 * text.size());  // character by character
  const Bound none(runtime, name, arguments, {});
  if (name == "upper") return runtime.text(map_case(text, Case::kUpper));
  if (name == "lower") return runtime.text(map_case(text, Case::kLower));
  if (name == "casefold") return runtime.text(map_case(text, Case::kFold));
  if (name == "capitalize") return runtime.text(capitalize(text));
  if (name == "swapcase") return runtime.text(swap_case(text));
  return runtime.text(title(text, true));
}

Value is_method(Runtime& runtime, const std::string& name, const Text& text, const Arguments& arguments) {
  runtime.read(3 * text.size());  // character by character
  const Bound none(runtime, name, arguments, {});
  if (name == "isalpha") return all_characters(text, is_letter);
  if (name == "isalnum") return all_characters(text, [](char32_t c) { return is_letter(c) || is_number(c); });
  if (name == "isspace") return all_characters(text, is_space);
  if (name == "isnumeric") return all_characters(text, is_number);
  if (name == "isdigit" || name == "isdecimal") return all_characters(text, is_decimal);
  if (name == "isascii") return text.ascii();
  if (name == "istitle") return is_title_text(text);
  return has_case(text, name == "isupper");
}

Value strip_method(Runtime& runtime, const std::string& name, const Text& text, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"chars"});
  return runtime.text(strip(text, in.text(0), name != "rstrip", name != "lstrip"));
}

Value split_method(Runtime& runtime, const std::string& name, const Text& text, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"sep", "maxsplit"});
  return texts(runtime, split(runtime, text, in.text(0), in.integer(1, -1), name == "rsplit"));
}

Value find_method(Runtime& runtime, const std::string& name, const Text& text, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"sub", "start", "end"});
  if (name == "count") {
    if (in.has(1) || in.has(2)) runtime.fail("count takes one argument here");
    return static_cast<int64_t>(count_of(text, in.needed_text(0)));
  }
  const int64_t at = find(text, in, name[0] == 'r');
  if (at < 0 && name.ends_with("index")) runtime.fail("substring not found");
  return at;
}

Value other_method(Runtime& runtime, const std::string& name, const Text& text, const Arguments& arguments) {
  if (name == "startswith" || name == "endswith") {
    return starts_or_ends(runtime, text, arguments, name == "startswith");
  }
  if (name == "replace") {
    const Bound in(runtime, name, arguments, {"old", "new", "count"});
    return runtime.text(replace(runtime, text, in.needed_text(0), in.needed_text(1), in.integer(2, -1)));
  }
  if (name == "splitlines") {
    const Bound in(runtime, name, arguments, {"keepends"});
    return texts(runtime, split_lines(runtime, text, in.truthy(0, false)));
  }
  if (name == "join") {
    const Bound in(runtime, name, arguments, {"iterable"});
    const std::vector<Value> items = items_of(runtime, in.value(0));
    for (const Value& part : items) {
      if (!part.text()) runtime.fail("join: expected strings, found ", part.type_name());
    }
    return runtime.text(join(runtime, items, text));
  }
  if (name == "zfill") return zero_fill(runtime, text, Bound(runtime, name, arguments, {"width"}).integer(0, 0));
  if (name == "partition" || name == "rpartition") {
    return partition(runtime, text, Bound(runtime, name, arguments, {"sep"}).needed_text(0), name[0] == 'r');
  }
  const Bound in(runtime, name, arguments, {"affix"});
  const std::string& affix = in.needed_text(0).bytes();
  if (name == "removeprefix") {
    return text.bytes().starts_with(affix) ? runtime.text(text.slice(affix.size(), text.size())) : Value(text);
  }
  return text.bytes().ends_with(affix) ? runtime.text(text.slice(0, text.size() - affix.size())) : Value(text);
}

struct NamedMethod {
  std::string_view name;
  Method call;
};
constexpr NamedMethod kTextMethods[] = {{"upper", case_method},
                                        {"lower", case_method},
                                        {"casefold", case_method},
                                        {"capitalize", case_method},
                                        {"swapcase", case_method},
                                        {"title", case_method},
                                        {"isalpha", is_method},
                                        {"isalnum", is_method},
                                        {"isspace", is_method},
                                        {"isnumeric", is_method},
                                        {"isdigit", is_method},
                                        {"isdecimal", is_method},
                                        {"isascii", is_method},
                                        {"istitle", is_method},
                                        {"isupper", is_method},
                                        {"islower", is_method},
                                        {"strip", strip_method},
                                        {"lstrip", strip_method},
                                        {"rstrip", strip_method},
                                        {"split", split_method},
                                        {"rsplit", split_method},
                                        {"find", find_method},
                                        {"rfind", find_method},
                                        {"index", find_method},
                                        {"rindex", find_method},
                                        {"count", find_method},
                                        {"ljust", justify},
                                        {"rjust", justify},
                                        {"center", justify},
                                        {"startswith", other_method},
                                        {"endswith", other_method},
                                        {"replace", other_method},
                                        {"splitlines", other_method},
                                        {"join", other_method},
                                        {"zfill", other_method},
                                        {"partition", other_method},
                                        {"rpartition", other_method},
                                        {"removeprefix", other_method},
                                        {"removesuffix", other_method}};

Value text_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  for (const NamedMethod& method : kTextMethods) {
    if (method.name != name) continue;
    return make_method(
        runtime, std::string(name), object,
        [call = method.call, key = std::string(name)](Runtime& r, const Value& self, const Arguments& a) {
          r.read(self.text()->size());
          return call(r, key, *self.text(), a);
        });
  }
  return {};
}

Value call_dict(Runtime& runtime, const std::string& name, const Value& self, const Arguments& arguments) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    const Bound in(runtime, name, arguments, {"key", "default"});
    const Value* found = dict.find(in.value(0));
    return found ? *found : in.has(1) ? in.value(1) : Value(None{});
  }
  const Bound none(runtime, name, arguments, {});
  if (name == "copy") return self;
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) {
    if (name == "items") {
      out.push_back(runtime.list({key, value}, true));
    } else {
      out.push_back(name == "keys" ? key : value);
    }
  }
  return runtime.list(std::move(out));
}

Value call_list(Runtime& runtime, const std::string& name, const Value& self, const Arguments& arguments) {
  if (name == "copy") {
    const Bound none(runtime, name, arguments, {});
    return self;
  }
  const Bound in(runtime, name, arguments, {"value"});
  int64_t count = 0;
  const std::vector<Value>& items = self.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!equal(runtime, items[i], in.value(0))) continue;
    if (name == "index") return static_cast<int64_t>(i);
    ++count;
  }
  if (name == "index") runtime.fail("the value is not in the list");
  return count;
}

Value call_loop(Runtime& runtime, const std::string& name, const Value& self, const Arguments& arguments) {
  Loop& loop = *self.loop();
  if (!loop.running) runtime.fail("loop.", name, " after the end of its loop");
  if (name == "cycle") {
    if (arguments.positional.empty()) runtime.fail("no items for cycling given");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const std::vector<Value>& now = arguments.positional;
  bool same = loop.has_changed && now.size() == loop.changed.size();
  for (size_t i = 0; same && i < now.size(); ++i) same = equal(runtime, now[i], loop.changed[i]);
  loop.changed = now;
  loop.has_changed = true;
  return !same;
}

Value loop_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  const Loop& loop = *object.loop();
  const auto index = static_cast<int64_t>(loop.index), length = static_cast<int64_t>(loop.items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length - index;
  if (name == "revindex0") return length - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 >= length;
  if (name == "length") return length;
  if (name == "depth") return loop.level + 1;
  if (name == "depth0") return loop.level;
  if (name == "previtem") return index > 0 ? loop.items[index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return index + 1 < length ? loop.items[index + 1] : Value::undefined("there is no next item");
  if (name == "cycle" || name == "changed") {
    return make_method(runtime, std::string(name), object,
                       [key = std::string(name)](Runtime& r, const Value& self, const Arguments& a) {
                         return call_loop(r, key, self, a);
                       });
  }
  return {};
}

Value missing(const Value& object, std::string_view name) {
  return Value::undefined("'" + object.type_name() + " object' has no attribute " + printable(name, 60));
}

}  // namespace

Value own_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  using Call = Value (*)(Runtime&, const std::string&, const Value&, const Arguments&);
  const auto bind = [&](Call call) {
    return make_method(runtime, std::string(name), object,
                       [call, key = std::string(name)](Runtime& r, const Value& self, const Arguments& a) {
                         return call(r, key, self, a);
                       });
  };
  if (object.text()) return text_attribute(runtime, object, name);
  if (object.dict() && (name == "get" || name == "items" || name == "keys" || name == "values" || name == "copy")) {
    return bind(call_dict);
  }
  if (object.list() && (name == "index" || name == "count" || name == "copy")) return bind(call_list);
  if (object.loop()) return loop_attribute(runtime, object, name);
  if (object.callable() && name == "name") return make_text(object.callable()->name, Origin::kTemplate);
  if (Namespace* space = object.space()) {
    if (const Value* held = space->find(name)) return *held;
  }
  return {};
}

Value attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_undefined()) runtime.fail_undefined(object);
  Value own = own_attribute(runtime, object, name);
  if (!own.is_undefined()) return own;
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return own.undefined_message() ? own : missing(object, name);
}

Value item(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is_undefined()) runtime.fail_undefined(object);
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->find(key)) return *found;
  }
  const bool whole = key.is_integer() || key.is_bool();
  if (whole && (object.list() || object.text())) {
    const int64_t length = length_of(runtime, object);
    const int64_t index = key.integer() < 0 ? key.integer() + length : key.integer();
    if (index < 0 || index >= length)
      return Value::undefined(object.type_name() + " object has no element " + std::to_string(key.integer()));
    if (const List* list = object.list()) return list->items[index];
    const Text& text = *object.text();
    if (!text.ascii()) runtime.read(text.size());
    return runtime.text(text.slice(character_offset(text, index), character_offset(text, index + 1)));
  }
  if (const Text* name = key.text()) {
    Value own = own_attribute(runtime, object, name->bytes());
    return own.is_undefined() ? missing(object, name->bytes()) : own;
  }
  return missing(object, to_text(runtime, key).bytes());
}

}  // namespace weir::jinja
