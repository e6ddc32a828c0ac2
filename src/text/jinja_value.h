// What expressions of a template evaluate to: Python's types as Jinja shows them. Everything is immutable except
// namespaces. Containers know how deep they nest, so that walking and freeing them needs a bounded stack.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_text.h"

namespace weir::jinja {

class Runtime;
class Value;
struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

struct Undefined {
  std::shared_ptr<const std::string> what;  // for messages: "'x' is undefined"; may be null
};
struct None {};

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, Namespace*, std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;

  Value() = default;  // undefined
  Value(None) : data_(None{}) {}
  Value(bool b) : data_(b) {}
  Value(int64_t i) : data_(i) {}
  Value(int i) : data_(int64_t{i}) {}
  Value(double d) : data_(d) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(List list);
  Value(Dict dict);
  Value(Namespace* space) : data_(space) {}  // owned by the Runtime
  Value(std::shared_ptr<const Callable> callable) : data_(std::move(callable)) {}
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}
  Value(const char*) = delete;

  static Value undefined(std::string what);  // `what`: a whole message

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(data_); }  // not bool
  bool is_number() const { return is_integer() || is_bool() || is_double(); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_double() const { return std::holds_alternative<double>(data_); }
  bool is_text() const { return text() != nullptr; }

  // Null when of another type.
  const Text* text() const { return pointer<Text>(); }
  const List* list() const { return pointer<List>(); }
  const Dict* dict() const { return pointer<Dict>(); }
  const Callable* callable() const { return pointer<Callable>(); }
  Namespace* space() const {
    const auto* held = std::get_if<Namespace*>(&data_);
    return held ? *held : nullptr;
  }
  std::shared_ptr<Loop> loop() const {
    const auto* held = std::get_if<std::shared_ptr<Loop>>(&data_);
    return held ? *held : nullptr;
  }

  int64_t integer() const;  // of an integer or bool
  double number() const;    // of an integer, bool or double
  bool truthy() const;
  int depth() const;              // 0 for scalars
  std::string type_name() const;  // Python's: "str", "dict"
  const std::string* undefined_message() const;

 private:
  template <class T>
  const T* pointer() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held ? held->get() : nullptr;
  }

  Variant data_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 0;  // set by Value(List)
};

// Insertion order, keys of any scalar type; 1, 1.0 and true are one key, as in Python.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string, size_t> index;  // of key_of(key)
  int depth = 0;                                  // set by Value(Dict)

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void put(Value key, Value value);             // replaces the value of an equal key
  static std::string key_of(const Value& key);  // "" for what can't be a key
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> fields;
  Value* find(std::string_view name);
};

// The `loop` variable of a for statement.
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  int level = 0;  // of a recursive loop, from 0
  std::vector<Value> changed;
  bool has_changed = false;
  std::function<Value(Runtime&, const Value& items)> again;  // of a recursive loop while it runs: loop(items)
  bool running = true;
  int depth = 0;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Something that can be called: a method with its receiver, a global function, a macro.
struct Callable {
  std::string name;
  Value receiver;
  std::function<Value(Runtime&, const Arguments&)> call;
  int depth = 0;
};

Value make_text(std::string bytes, Origin origin);
Value make_method(Runtime& runtime, std::string name, Value receiver,
                  std::function<Value(Runtime&, const Value&, const Arguments&)> call);

// Strings of the value get Origin::kValue.
Value from_json(const boost::json::value& json);

// Python's operators. Errors go through the runtime.
bool equal(Runtime& runtime, const Value& a, const Value& b);
bool less(Runtime& runtime, const Value& a, const Value& b);  // error for types without an order
bool contains(Runtime& runtime, const Value& container, const Value& item);
std::vector<Value> items_of(Runtime& runtime, const Value& value);  // what iterating over it yields
int64_t length_of(Runtime& runtime, const Value& value);
Value attribute(Runtime& runtime, const Value& object, std::string_view name);  // object.name
Value item(Runtime& runtime, const Value& object, const Value& key);            // object[key]
// A method or built-in attribute, not an entry of a dict; undefined when there is none.
Value own_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step);
Value arithmetic(Runtime& runtime, char op, const Value& a, const Value& b);  // + - * / % and '^' for **, 'f' for //
Value format_percent(Runtime& runtime, const Text& format, const Value& arguments);

// str(value) and repr(value). A string keeps its origins; digits and punctuation count as the template's.
Text to_text(Runtime& runtime, const Value& value);
void append_text(Runtime& runtime, const Value& value, TextBuilder& out);
void append_repr(Runtime& runtime, const Value& value, TextBuilder& out);
std::string float_repr(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  const Text* indent = nullptr;  // one level of it; null: one line
  Text item_separator, key_separator;
};
// json.dumps. The punctuation counts as a value's.
void append_json(Runtime& runtime, const Value& value, const JsonStyle& style, TextBuilder& out);

}  // namespace weir::jinja
