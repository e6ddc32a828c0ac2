// Arguments of filters, tests, methods and functions, bound to the names of their parameters.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_runtime.h"

namespace weir::jinja {

class Bound {
 public:
  // Error when an argument has no parameter. `what` is for messages: "filter 'join'".
  Bound(Runtime& runtime, std::string what, const Arguments& given, std::initializer_list<std::string_view> names);

  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& value(size_t i) const;  // error when missing
  // Null when absent or none; error when of another type.
  const Text* text(size_t i) const;
  const Text& needed_text(size_t i) const;
  int64_t integer(size_t i, int64_t fallback) const;
  bool truthy(size_t i, bool fallback) const { return has(i) ? values_[i]->truthy() : fallback; }

 private:
  Runtime& runtime_;
  std::string what_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace weir::jinja
