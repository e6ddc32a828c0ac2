// Filters of lists and dictionaries.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_sort.h"
#include "text/jinja_strings.h"

namespace weir::jinja {
namespace {

Value length_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound none(runtime, name, arguments, {});
  return length_of(runtime, input);
}

Value end_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound none(runtime, name, arguments, {});
  const std::vector<Value> items = items_of(runtime, input);
  if (items.empty()) return Value::undefined("no " + name + " item, the sequence was empty");
  return name == "first" ? items.front() : items.back();
}

Value list_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound none(runtime, name, arguments, {});
  std::vector<Value> items = items_of(runtime, input);
  if (name == "reverse") {
    std::reverse(items.begin(), items.end());
    if (input.text()) return runtime.text(join(runtime, items, Text()));
  }
  return runtime.list(std::move(items));
}

Value items_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound none(runtime, name, arguments, {});
  if (input.is_undefined()) return runtime.list({});
  if (!input.dict()) runtime.fail("can only get item pairs from a mapping, not ", input.type_name());
  std::vector<Value> out;
  for (const auto& [key, value] : input.dict()->entries) out.push_back(runtime.list({key, value}, true));
  return runtime.list(std::move(out));
}

Value join_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"d", "attribute"});
  std::vector<Value> items = items_of(runtime, input);
  if (in.has(1) && !in.value(1).is_none()) {
    for (Value& item : items) item = dotted_attribute(runtime, item, in.value(1));
  }
  return runtime.text(join(runtime, items, in.has(0) ? to_text(runtime, in.value(0)) : Text()));
}

// Strings compare without regard to case unless `exact`.
Value sort_key(Runtime& runtime, const Value& value, bool exact) {
  return !exact && value.text() ? runtime.text(map_case(*value.text(), Case::kLower)) : value;
}

struct Keyed {
  Value key, value;
};

std::vector<Keyed> keyed_items(Runtime& runtime, const Value& input, const Value& path, bool exact) {
  std::vector<Keyed> out;
  for (Value& item : items_of(runtime, input)) {
    Value key = path.is_none() ? item : dotted_attribute(runtime, item, path);
    out.push_back({sort_key(runtime, key, exact), std::move(item)});
  }
  return out;
}

void sort_items(Runtime& runtime, std::vector<Keyed>& items, bool reverse) {
  merge_sort(items, [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(runtime, b.key, a.key) : less(runtime, a.key, b.key);
  });
}

Value path_of(const Bound& in, size_t i) { return in.has(i) ? in.value(i) : Value(None{}); }

Value sort_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"reverse", "case_sensitive", "attribute"});
  const bool exact = in.truthy(1, false);
  const Text comma(",", Origin::kTemplate);
  const Value path = path_of(in, 2);
  std::vector<Value> paths = {path};
  if (path.text()) {
    paths.clear();
    for (Text& part : split(runtime, *path.text(), &comma, -1, false)) paths.emplace_back(std::move(part));
  }
  std::vector<Keyed> items;
  for (Value& item : items_of(runtime, input)) {
    // A list even for one key: then missing attributes are equal instead of an error.
    std::vector<Value> keys;
    for (const Value& part : paths) {
      keys.push_back(sort_key(runtime, part.is_none() ? item : dotted_attribute(runtime, item, part), exact));
    }
    items.push_back({runtime.list(std::move(keys)), std::move(item)});
  }
  sort_items(runtime, items, in.truthy(0, false));
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.value));
  return runtime.list(std::move(out));
}

Value unique_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> out;
  for (Keyed& item : keyed_items(runtime, input, path_of(in, 1), in.truthy(0, false))) {
    if (Dict::key_of(item.key).empty()) runtime.fail("unique: a ", item.key.type_name(), " can't be compared here");
    runtime.charge(192);
    if (seen.find(item.key)) continue;
    seen.put(item.key, None{});
    out.push_back(std::move(item.value));
  }
  return runtime.list(std::move(out));
}

Value extreme_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"case_sensitive", "attribute"});
  std::vector<Keyed> items = keyed_items(runtime, input, path_of(in, 1), in.truthy(0, false));
  if (items.empty()) return Value::undefined("no aggregated item, the sequence was empty");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    const bool better =
        name == "max" ? less(runtime, items[best].key, items[i].key) : less(runtime, items[i].key, items[best].key);
    if (better) best = i;
  }
  return items[best].value;
}

Value sum_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"attribute", "start"});
  Value total = in.has(1) ? in.value(1) : Value(0);
  const Value path = path_of(in, 0);
  for (const Value& item : items_of(runtime, input)) {
    total = arithmetic(runtime, '+', total, path.is_none() ? item : dotted_attribute(runtime, item, path));
  }
  return total;
}

Value dictsort_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"case_sensitive", "by", "reverse"});
  if (!input.dict()) runtime.fail("dictsort needs a mapping, not ", input.type_name());
  const std::string by = in.has(1) ? in.needed_text(1).bytes() : "key";
  if (by != "key" && by != "value") runtime.fail("dictsort: 'by' must be key or value");
  std::vector<Keyed> items;
  for (const auto& [key, value] : input.dict()->entries) {
    items.push_back(
        {sort_key(runtime, by == "key" ? key : value, in.truthy(0, false)), runtime.list({key, value}, true)});
  }
  sort_items(runtime, items, in.truthy(2, false));
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.value));
  return runtime.list(std::move(out));
}

Value groupby_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"attribute", "default", "case_sensitive"});
  const bool exact = in.truthy(2, false);
  std::vector<Keyed> items;
  std::vector<Value> out, group;
  for (Value& item : items_of(runtime, input)) {
    const Value key = dotted_attribute(runtime, item, in.value(0), in.has(1) ? &in.value(1) : nullptr);
    items.push_back({sort_key(runtime, key, exact), std::move(item)});
  }
  sort_items(runtime, items, false);
  for (size_t i = 0; i < items.size(); ++i) {
    group.push_back(items[i].value);
    if (i + 1 < items.size() && equal(runtime, items[i].key, items[i + 1].key)) continue;
    // Of the first, as it is spelled there.
    Value key = dotted_attribute(runtime, group.front(), in.value(0), in.has(1) ? &in.value(1) : nullptr);
    out.push_back(runtime.list({std::move(key), runtime.list(std::exchange(group, {}))}, true));
  }
  return runtime.list(std::move(out));
}

Value batch_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"linecount", "fill_with"});
  const int64_t size = in.integer(0, 0);
  if (size < 1 || size > 1'000'000) runtime.fail("batch: the size must be between 1 and 1000000");
  std::vector<Value> out, line;
  for (Value& item : items_of(runtime, input)) {
    line.push_back(std::move(item));
    if (static_cast<int64_t>(line.size()) == size) out.push_back(runtime.list(std::exchange(line, {})));
  }
  if (!line.empty()) {
    if (in.has(1) && !in.value(1).is_none()) {
      runtime.charge(size * sizeof(Value));
      line.resize(size, in.value(1));
    }
    out.push_back(runtime.list(std::move(line)));
  }
  return runtime.list(std::move(out));
}

Value slice_filter(Runtime& runtime, const std::string& name, const Value& input, const Arguments& arguments) {
  const Bound in(runtime, name, arguments, {"slices", "fill_with"});
  const int64_t slices = in.integer(0, 0);
  if (slices < 1 || slices > 10'000) runtime.fail("slice: the count must be between 1 and 10000");
  const std::vector<Value> items = items_of(runtime, input);
  const int64_t each = static_cast<int64_t>(items.size()) / slices,
                longer = static_cast<int64_t>(items.size()) % slices;
  std::vector<Value> out;
  auto at = items.begin();
  for (int64_t i = 0; i < slices; ++i) {
    const int64_t take = each + (i < longer ? 1 : 0);
    std::vector<Value> part(at, at + take);
    at += take;
    if (in.has(1) && !in.value(1).is_none() && i >= longer) part.push_back(in.value(1));
    out.push_back(runtime.list(std::move(part)));
  }
  return runtime.list(std::move(out));
}

constexpr NamedFilter kFilters[] = {
    {"length", length_filter}, {"count", length_filter},      {"first", end_filter},       {"last", end_filter},
    {"list", list_filter},     {"reverse", list_filter},      {"items", items_filter},     {"join", join_filter},
    {"sort", sort_filter},     {"unique", unique_filter},     {"min", extreme_filter},     {"max", extreme_filter},
    {"sum", sum_filter},       {"dictsort", dictsort_filter}, {"groupby", groupby_filter}, {"batch", batch_filter},
    {"slice", slice_filter},
};

}  // namespace

FilterFunction find_list_filter(std::string_view name) {
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.call;
  }
  return nullptr;
}

}  // namespace weir::jinja
