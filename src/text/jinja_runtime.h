// What a running template may use up, and what its errors look like.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/jinja_value.h"

namespace weir::jinja {

struct Limits {
  size_t source_bytes = size_t{1} << 20;
  int64_t steps = 20'000'000;  // statements, expressions and items of lists: about two seconds of work
  int depth = 640;             // of statements, expressions and macro calls inside each other: about 1 MiB of stack
  size_t output_bytes = size_t{64} << 20;
  size_t string_bytes = size_t{512} << 20;  // of all strings and lists ever made while rendering
};

// "NAME:LINE: what", for templates that can't be compiled or rendered.
class TemplateError : public Error {
 public:
  TemplateError(const std::string& message, bool raised) : Error(message), raised_by_template_(raised) {}
  // The template called raise_exception: the conversation is at fault, not the template.
  bool raised_by_template() const { return raised_by_template_; }

 private:
  bool raised_by_template_;
};

class Runtime {
 public:
  Runtime(std::string name, Limits limits, std::tm now) : name_(std::move(name)), limits_(limits), now_(now) {}

  // Containers and calls inside each other, beyond which a value is refused.
  static constexpr int kMaxValueDepth = 100;

  void step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.steps) fail("the template needs more than ", limits_.steps, " steps");
  }
  // Before reading a string through.
  void read(size_t bytes) { step(static_cast<int64_t>(bytes / 32)); }
  void charge(size_t bytes) {
    bytes_ += bytes;
    if (bytes_ > limits_.string_bytes) fail("the template makes more than ", limits_.string_bytes, " bytes of strings");
  }
  const Limits& limits() const { return limits_; }
  const std::tm& now() const { return now_; }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw TemplateError(concat(name_, ":", line, ": ", parts...), false);
  }
  [[noreturn]] void raise(const std::string& message) const {
    throw TemplateError(concat(name_, ":", line, ": ", message), true);
  }
  // `what` was used where a defined value is needed.
  [[noreturn]] void fail_undefined(const Value& value) const;

  // Values with their bytes charged and their depth checked.
  Value text(Text text);
  Value text(std::string bytes, Origin origin) { return this->text(Text(std::move(bytes), origin)); }
  Value list(std::vector<Value> items, bool tuple = false);
  Value dict(Dict dict);
  Namespace* make_namespace();

  int line = 0;   // being executed
  int depth = 0;  // of statements and expressions being executed

 private:
  std::string name_;
  Limits limits_;
  std::tm now_;
  int64_t steps_ = 0;
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

// Counts one level of nesting while it lives.
class Nest {
 public:
  explicit Nest(Runtime& runtime) : runtime_(runtime) {
    if (++runtime_.depth > runtime_.limits().depth) {
      --runtime_.depth;
      runtime_.fail("statements, expressions and macro calls nest more than ", runtime_.limits().depth, " deep");
    }
  }
  ~Nest() { --runtime_.depth; }
  Nest(const Nest&) = delete;
  Nest& operator=(const Nest&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace weir::jinja
