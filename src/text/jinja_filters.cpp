#include "text/jinja_filters.h"

#include <charconv>

#include "text/jinja_strings.h"

namespace weir::jinja {
namespace {

// The test or filter named by the argument at `first`, applied to a value with the arguments after it.
Arguments rest_of(const Arguments& arguments, size_t first) {
  Arguments out;
  for (size_t i = first; i < arguments.positional.size(); ++i) out.positional.push_back(arguments.positional[i]);
  out.named = arguments.named;
  return out;
}

const std::string& name_at(Runtime& runtime, const std::string& filter, const Arguments& arguments, size_t at) {
  if (!arguments.positional[at].text())
    runtime.fail(filter, " needs a name, not ", arguments.positional[at].type_name());
  return arguments.positional[at].text()->bytes();
}

// select, reject, selectattr, rejectattr.
Value select_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr"), keep = name.starts_with("select");
  const size_t test = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) runtime.fail(name, " needs the name of an attribute");
  std::vector<Value> out;
  if (!input.truthy()) return runtime.list({});  // None too, as in Jinja
  const Arguments rest = rest_of(arguments, test + 1);
  for (Value& item : items_of(runtime, input)) {
    const Value tested = by_attribute ? dotted_attribute(runtime, item, arguments.positional[0]) : item;
    const bool holds = arguments.positional.size() > test
                           ? apply_test(runtime, name_at(runtime, name, arguments, test), tested, rest)
                           : tested.truthy();
    if (holds == keep) out.push_back(std::move(item));
  }
  return runtime.list(std::move(out));
}

Value map_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  std::vector<Value> out;
  if (!input.truthy()) return runtime.list({});
  if (!arguments.positional.empty()) {
    const Arguments rest = rest_of(arguments, 1);
    const std::string& filter = name_at(runtime, name, arguments, 0);
    for (const Value& item : items_of(runtime, input)) out.push_back(apply_filter(runtime, filter, item, rest));
    return runtime.list(std::move(out));
  }
  const Bound in(runtime, name, arguments, {"attribute", "default"});
  for (const Value& item : items_of(runtime, input)) {
    out.push_back(dotted_attribute(runtime, item, in.value(0), in.has(1) ? &in.value(1) : nullptr));
  }
  return runtime.list(std::move(out));
}

}  // namespace

FilterFunction find_choice_filter(std::string_view name) {
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") return select_filter;
  return name == "map" ? map_filter : nullptr;
}

Value dotted_attribute(Runtime& runtime, const Value& object, const Value& path, const Value* fallback) {
  runtime.step();
  if (path.is_integer()) {
    Value found = item(runtime, object, path);
    return found.is_undefined() && fallback ? *fallback : found;
  }
  if (!path.text()) runtime.fail("an attribute must be named by a string or a number, not ", path.type_name());
  Value at = object;
  const std::string_view whole = path.text()->bytes();
  for (size_t begin = 0; begin <= whole.size();) {
    const size_t dot = std::min(whole.find('.', begin), whole.size());
    const std::string_view part = whole.substr(begin, dot - begin);
    int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && part[0] != '-' && read.ptr == part.data() + part.size();
    at = item(runtime, at, number ? Value(index) : make_text(std::string(part), Origin::kTemplate));
    if (at.is_undefined() && fallback) at = *fallback;
    begin = dot + 1;
  }
  return at;
}

Value apply_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Nest nest(runtime);
  runtime.step();
  if (input.text()) runtime.read(input.text()->size());
  FilterFunction filter = find_text_filter(name);
  if (!filter) filter = find_list_filter(name);
  if (!filter) filter = find_choice_filter(name);
  if (!filter) runtime.fail("no filter named ", printable(name, 60));
  return filter(runtime, name, input, arguments);
}

}  // namespace weir::jinja
