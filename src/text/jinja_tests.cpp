// value is test(...).
#include "text/jinja_filters.h"
#include "text/jinja_strings.h"

namespace weir::jinja {
namespace {

using TestFunction = bool (*)(Runtime&, const Value&, const Value& other);

int64_t whole(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) runtime.fail_undefined(value);
  if (value.is_double() || !value.is_number()) runtime.fail("an integer is required, not ", value.type_name());
  return value.integer();
}

bool is_cased_as(Runtime& runtime, const Value& value, std::string_view method) {
  const Value text(to_text(runtime, value));
  return attribute(runtime, text, method).callable()->call(runtime, {}).truthy();
}

bool is_same(const Value& a, const Value& b) {
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_bool() || b.is_bool()) return a.is_bool() && b.is_bool() && a.truthy() == b.truthy();
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.text() && b.text()) return a.text() == b.text();
  if (a.list() && b.list()) return a.list() == b.list();
  return (a.dict() && a.dict() == b.dict()) || (a.space() && a.space() == b.space());
}

struct NamedTest {
  std::string_view name;
  int arguments;
  TestFunction call;
};

const NamedTest kTests[] = {
    {"defined", 0, [](Runtime&, const Value& v, const Value&) { return !v.is_undefined(); }},
    {"undefined", 0, [](Runtime&, const Value& v, const Value&) { return v.is_undefined(); }},
    {"none", 0, [](Runtime&, const Value& v, const Value&) { return v.is_none(); }},
    {"boolean", 0, [](Runtime&, const Value& v, const Value&) { return v.is_bool(); }},
    {"true", 0, [](Runtime&, const Value& v, const Value&) { return v.is_bool() && v.truthy(); }},
    {"false", 0, [](Runtime&, const Value& v, const Value&) { return v.is_bool() && !v.truthy(); }},
    {"integer", 0, [](Runtime&, const Value& v, const Value&) { return v.is_integer(); }},
    {"float", 0, [](Runtime&, const Value& v, const Value&) { return v.is_double(); }},
    {"number", 0, [](Runtime&, const Value& v, const Value&) { return v.is_number(); }},
    {"string", 0, [](Runtime&, const Value& v, const Value&) { return v.is_text(); }},
    {"mapping", 0, [](Runtime&, const Value& v, const Value&) { return v.dict() != nullptr; }},
    {"sequence", 0,
     [](Runtime&, const Value& v, const Value&) { return v.text() || v.list() || v.dict() || v.is_undefined(); }},
    {"iterable", 0,
     [](Runtime&, const Value& v, const Value&) { return v.text() || v.list() || v.dict() || v.is_undefined(); }},
    {"callable", 0,
     [](Runtime&, const Value& v, const Value&) { return v.callable() || v.loop() || v.is_undefined(); }},
    {"odd", 0, [](Runtime& r, const Value& v, const Value&) { return whole(r, v) % 2 != 0; }},
    {"even", 0, [](Runtime& r, const Value& v, const Value&) { return whole(r, v) % 2 == 0; }},
    {"upper", 0, [](Runtime& r, const Value& v, const Value&) { return is_cased_as(r, v, "isupper"); }},
    {"lower", 0, [](Runtime& r, const Value& v, const Value&) { return is_cased_as(r, v, "islower"); }},
    {"escaped", 0, [](Runtime&, const Value&, const Value&) { return false; }},
    {"filter", 0,
     [](Runtime&, const Value& v, const Value&) {
       if (!v.text()) return false;
       const std::string& name = v.text()->bytes();
       return find_text_filter(name) || find_list_filter(name) || find_choice_filter(name);
     }},
    {"divisibleby", 1,
     [](Runtime& r, const Value& v, const Value& by) {
       if (whole(r, by) == 0) r.fail("division by zero");
       return whole(r, by) == -1 || whole(r, v) % whole(r, by) == 0;
     }},
    {"sameas", 1, [](Runtime&, const Value& v, const Value& other) { return is_same(v, other); }},
    {"in", 1, [](Runtime& r, const Value& v, const Value& other) { return contains(r, other, v); }},
    {"eq", 1, [](Runtime& r, const Value& v, const Value& other) { return equal(r, v, other); }},
    {"ne", 1, [](Runtime& r, const Value& v, const Value& other) { return !equal(r, v, other); }},
    {"lt", 1, [](Runtime& r, const Value& v, const Value& other) { return less(r, v, other); }},
    {"gt", 1, [](Runtime& r, const Value& v, const Value& other) { return less(r, other, v); }},
    {"le", 1, [](Runtime& r, const Value& v, const Value& other) { return less(r, v, other) || equal(r, v, other); }},
    {"ge", 1, [](Runtime& r, const Value& v, const Value& other) { return less(r, other, v) || equal(r, v, other); }},
};

std::string_view plain_name(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
      {"equalto", "eq"}, {"==", "eq"}, {"!=", "ne"},          {"lessthan", "lt"}, {"<", "lt"},
      {"<=", "le"},      {">=", "ge"}, {"greaterthan", "gt"}, {">", "gt"}};
  for (const auto& [alias, meaning] : kAliases) {
    if (alias == name) return meaning;
  }
  return name;
}

}  // namespace

bool apply_test(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  runtime.step();
  const std::string_view plain = plain_name(name);
  for (const NamedTest& test : kTests) {
    if (test.name != plain) continue;
    const size_t given = arguments.positional.size() + arguments.named.size();
    if (given != static_cast<size_t>(test.arguments)) {
      runtime.fail("the test ", name, " takes ", test.arguments, " arguments, got ", given);
    }
    const Value none;
    const Value& other = test.arguments == 0       ? none
                         : arguments.named.empty() ? arguments.positional[0]
                                                   : arguments.named[0].second;
    return test.call(runtime, input, other);
  }
  runtime.fail("no test named ", printable(name, 60));
}

}  // namespace weir::jinja
