// Functions that every template can call.
#include "text/jinja_arguments.h"
#include "text/jinja_interpreter.h"

namespace weir::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

Value range(Runtime& runtime, const Arguments& arguments) {
  const Bound in(runtime, "range", arguments, {"start", "stop", "step"});
  const bool one = !in.has(1);
  const int64_t start = one ? 0 : in.integer(0, 0), stop = one ? in.integer(0, 0) : in.integer(1, 0);
  const int64_t step = in.integer(2, 1);
  in.value(0);
  if (step == 0) runtime.fail("range() arg 3 must not be zero");
  std::vector<Value> out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(out.size()) == kMaxRange) runtime.fail("a range has at most ", kMaxRange, " items");
    out.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return runtime.list(std::move(out));
}

// The entries of dict(...) and namespace(...): a mapping or pairs, then names.
Dict entries(Runtime& runtime, const std::string& what, const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) runtime.fail(what, " takes at most one positional argument");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.dict()) {
      for (const auto& [key, value] : from.dict()->entries) dict.put(key, value);
    } else {
      for (const Value& pair : items_of(runtime, from)) {
        const std::vector<Value> parts = items_of(runtime, pair);
        if (parts.size() != 2 || Dict::key_of(parts[0]).empty())
          runtime.fail(what, " needs pairs of a key and a value");
        dict.put(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.put(make_text(name, Origin::kTemplate), value);
  return dict;
}

Value make_dict(Runtime& runtime, const Arguments& arguments) {
  return runtime.dict(entries(runtime, "dict", arguments));
}

Value make_space(Runtime& runtime, const Arguments& arguments) {
  Namespace* space = runtime.make_namespace();
  for (auto& [key, value] : entries(runtime, "namespace", arguments).entries) {
    if (!key.text()) runtime.fail("names of a namespace must be strings");
    runtime.charge(64);
    space->fields.emplace_back(key.text()->bytes(), value);
  }
  return space;
}

Value raise_exception(Runtime& runtime, const Arguments& arguments) {
  const Bound in(runtime, "raise_exception", arguments, {"message"});
  runtime.raise(to_text(runtime, in.value(0)).bytes());
}

Value strftime_now(Runtime& runtime, const Arguments& arguments) {
  const Bound in(runtime, "strftime_now", arguments, {"format"});
  const std::string& format = in.needed_text(0).bytes();
  if (format.size() > 1000) runtime.fail("strftime_now: the format is too long");
  std::string out(format.size() * 50 + 100, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &runtime.now()));
  return runtime.text(std::move(out), Origin::kTemplate);
}

}  // namespace

std::unordered_map<std::string, Value> global_functions() {
  std::unordered_map<std::string, Value> out;
  const auto add = [&](const char* name, Value (*call)(Runtime&, const Arguments&)) {
    auto made = std::make_shared<Callable>();
    made->name = name;
    made->call = call;
    out.emplace(name, Value(std::shared_ptr<const Callable>(std::move(made))));
  };
  add("range", range);
  add("dict", make_dict);
  add("namespace", make_space);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  return out;
}

}  // namespace weir::jinja
