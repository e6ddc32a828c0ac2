// value | filter(...), value is test(...).
#pragma once

#include <string>
#include <string_view>

#include "text/jinja_arguments.h"
#include "text/jinja_runtime.h"

namespace weir::jinja {

Value apply_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments);
bool apply_test(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments);

// One table of filters per file. `name` serves functions that stand for several filters.
using FilterFunction = Value (*)(Runtime&, const std::string& name, const Value& input, const Arguments&);
struct NamedFilter {
  std::string_view name;
  FilterFunction call;
};
FilterFunction find_text_filter(std::string_view name);    // of strings and numbers; null when unknown
FilterFunction find_list_filter(std::string_view name);    // of lists
FilterFunction find_choice_filter(std::string_view name);  // that apply attributes, tests or filters to items

// "a.b.0" of an item, as the attribute= of filters. `fallback`, when given, stands for missing parts.
Value dotted_attribute(Runtime& runtime, const Value& object, const Value& path, const Value* fallback = nullptr);

}  // namespace weir::jinja
