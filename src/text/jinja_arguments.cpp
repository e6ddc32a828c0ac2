#include "text/jinja_arguments.h"

namespace weir::jinja {

Bound::Bound(Runtime& runtime, std::string what, const Arguments& given, std::initializer_list<std::string_view> names)
    : runtime_(runtime), what_(std::move(what)), names_(names), values_(names.size()) {
  if (given.positional.size() > names_.size()) {
    runtime.fail(what_, " takes at most ", names_.size(), " arguments, got ", given.positional.size());
  }
  for (size_t i = 0; i < given.positional.size(); ++i) values_[i] = &given.positional[i];
  for (const auto& [name, value] : given.named) {
    const auto at = std::find(names_.begin(), names_.end(), name);
    if (at == names_.end()) runtime.fail(what_, " has no argument '", name, "'");
    const Value*& slot = values_[at - names_.begin()];
    if (slot) runtime.fail(what_, " got two values for '", name, "'");
    slot = &value;
  }
}

const Value& Bound::value(size_t i) const {
  if (!values_[i]) runtime_.fail(what_, " needs the argument '", names_[i], "'");
  return *values_[i];
}

const Text* Bound::text(size_t i) const {
  if (!values_[i] || values_[i]->is_none()) return nullptr;
  if (values_[i]->is_undefined()) runtime_.fail_undefined(*values_[i]);
  if (!values_[i]->text()) {
    runtime_.fail(what_, ": '", names_[i], "' must be a string, not ", values_[i]->type_name());
  }
  return values_[i]->text();
}

const Text& Bound::needed_text(size_t i) const {
  const Text* held = text(i);
  if (!held) runtime_.fail(what_, " needs the string '", names_[i], "'");
  return *held;
}

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!values_[i]) return fallback;
  if (!values_[i]->is_integer() && !values_[i]->is_bool()) {
    runtime_.fail(what_, ": '", names_[i], "' must be an integer, not ", values_[i]->type_name());
  }
  return values_[i]->integer();
}

}  // namespace weir::jinja
