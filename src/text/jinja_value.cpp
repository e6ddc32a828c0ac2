#include "text/jinja_value.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <cmath>

#include "text/jinja_runtime.h"
#include "text/jinja_unicode.h"

namespace weir::jinja {

Value::Value(List list) {
  for (const Value& item : list.items) list.depth = std::max(list.depth, item.depth());
  ++list.depth;
  data_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) {
  for (const auto& [key, value] : dict.entries) dict.depth = std::max({dict.depth, key.depth(), value.depth()});
  ++dict.depth;
  data_ = std::make_shared<const Dict>(std::move(dict));
}

Value Value::undefined(std::string what) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

int64_t Value::integer() const { return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_); }

double Value::number() const { return is_double() ? std::get<double>(data_) : static_cast<double>(integer()); }

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_double()) return number() != 0;
  if (is_number()) return integer() != 0;
  if (const Text* held = text()) return !held->empty();
  if (const List* held = list()) return !held->items.empty();
  if (const Dict* held = dict()) return !held->entries.empty();
  return true;
}

int Value::depth() const {
  if (const List* held = list()) return held->depth;
  if (const Dict* held = dict()) return held->depth;
  if (const Callable* held = callable()) return held->depth;
  if (const auto* held = std::get_if<std::shared_ptr<Loop>>(&data_)) return (*held)->depth;
  return 0;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_integer()) return "int";
  if (is_double()) return "float";
  if (is_text()) return "str";
  if (const List* held = list()) return held->tuple ? "tuple" : "list";
  if (dict()) return "dict";
  if (space()) return "Namespace";
  if (callable()) return "function";
  return "LoopContext";
}

const std::string* Value::undefined_message() const {
  const auto* held = std::get_if<Undefined>(&data_);
  return held ? held->what.get() : nullptr;
}

constexpr size_t kMaxKey = 65536;

std::string Dict::key_of(const Value& key) {
  if (const Text* text = key.text()) return "s" + text->bytes();
  if (key.is_none()) return "n";
  if (key.is_number()) {
    const double number = key.number();
    if (!key.is_double()) return "i" + std::to_string(key.integer());
    if (std::floor(number) == number && std::abs(number) < 9e15) return "i" + std::to_string(int64_t(number));
    return "f" + float_repr(number);
  }
  if (const List* list = key.list(); list && list->tuple) {
    std::string out = "t";
    for (const Value& part : list->items) {
      const std::string inner = key_of(part);
      if (inner.empty()) return "";
      out += std::to_string(inner.size()) + ":" + inner;
      if (out.size() > kMaxKey) return "";  // tuples that share tuples grow exponentially
    }
    return out;
  }
  return "";
}

const Value* Dict::find(const Value& key) const {
  const auto found = index.find(key_of(key));
  return found == index.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  std::string name = "s";
  name += key;
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &entries[found->second].second;
}

void Dict::put(Value key, Value value) {
  const auto [at, fresh] = index.emplace(key_of(key), entries.size());
  if (fresh) {
    entries.emplace_back(std::move(key), std::move(value));
  } else {
    entries[at->second].second = std::move(value);
  }
}

Value* Namespace::find(std::string_view name) {
  for (auto& [field, value] : fields) {
    if (field == name) return &value;
  }
  return nullptr;
}

Value make_text(std::string bytes, Origin origin) { return Value(Text(std::move(bytes), origin)); }

Value make_method(Runtime& runtime, std::string name, Value receiver,
                  std::function<Value(Runtime&, const Value&, const Arguments&)> call) {
  Callable method{.name = std::move(name), .receiver = std::move(receiver)};
  method.depth = method.receiver.depth() + 1;
  if (method.depth > Runtime::kMaxValueDepth) runtime.fail("values nest too deep");
  auto made = std::make_shared<Callable>(std::move(method));
  // The receiver lives in the callable, which outlives the call.
  made->call = [self = made.get(), call = std::move(call)](Runtime& r, const Arguments& arguments) {
    return call(r, self->receiver, arguments);
  };
  return Value(std::shared_ptr<const Callable>(std::move(made)));
}

Value from_json(const boost::json::value& json) {
  switch (json.kind()) {
    case boost::json::kind::null:
      return None{};
    case boost::json::kind::bool_:
      return json.get_bool();
    case boost::json::kind::int64:
      return int64_t{json.get_int64()};
    case boost::json::kind::uint64:
      return static_cast<double>(json.get_uint64());  // beyond int64
    case boost::json::kind::double_:
      return json.get_double();
    case boost::json::kind::string:
      return make_text(std::string(json.get_string()), Origin::kValue);
    case boost::json::kind::array: {
      List list;
      list.items.reserve(json.get_array().size());
      for (const boost::json::value& part : json.get_array()) list.items.push_back(from_json(part));
      return list;
    }
    case boost::json::kind::object: {
      Dict dict;
      for (const auto& [key, value] : json.get_object()) {
        dict.put(make_text(std::string(key), Origin::kValue), from_json(value));
      }
      return dict;
    }
  }
  return {};
}

void Runtime::fail_undefined(const Value& value) const {
  const std::string* what = value.undefined_message();
  fail(what ? *what : std::string("an undefined value is used"));
}

Value Runtime::text(Text text) {
  charge(text.size() + 64);
  return Value(std::move(text));
}

Value Runtime::list(std::vector<Value> items, bool tuple) {
  charge(items.size() * sizeof(Value) + 64);
  step(static_cast<int64_t>(items.size() / 8));
  Value made(List{.items = std::move(items), .tuple = tuple});
  if (made.depth() > kMaxValueDepth) fail("lists nest more than ", kMaxValueDepth, " deep");
  return made;
}

Value Runtime::dict(Dict dict) {
  charge(dict.entries.size() * 160 + 64);
  Value made(std::move(dict));
  if (made.depth() > kMaxValueDepth) fail("dictionaries nest more than ", kMaxValueDepth, " deep");
  return made;
}

Namespace* Runtime::make_namespace() {
  charge(256);
  namespaces_.push_back(std::make_unique<Namespace>());
  return namespaces_.back().get();
}

}  // namespace weir::jinja
