// Runs a parsed template.
#pragma once

#include <string>
#include <unordered_map>

#include "text/jinja.h"
#include "text/jinja_ast.h"

namespace weir::jinja {

// Variables of a template, a loop's round, a macro's call.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  void set(const std::string& name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  Interpreter(Runtime& runtime, const Variables& variables);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Text run(const Block& block);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Statements.
  Flow run(const Block& block, const ScopePtr& scope, TextBuilder& out);
  Flow run(const Statement& statement, const ScopePtr& scope, TextBuilder& out);
  void run_for(const Statement& statement, const ScopePtr& scope, const Value& over, int level, TextBuilder& out);
  std::vector<Value> loop_items(const Statement& statement, const ScopePtr& scope, const Value& over);
  Text run_aside(const Block& block, const ScopePtr& scope);  // in a scope of its own, into a string
  void run_with(const Statement& statement, const ScopePtr& scope, TextBuilder& out);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  Value make_macro(const std::shared_ptr<const MacroBody>& macro, const ScopePtr& scope);
  Value call_macro(const MacroBody& macro, const ScopePtr& closure, const Arguments& arguments);
  void append(const Text& text, TextBuilder& out);

  // Expressions.
  Value eval(const Expr& expr, const ScopePtr& scope);
  Value eval_dict(const Expr& expr, const ScopePtr& scope);
  Value eval_compare(const Expr& expr, const ScopePtr& scope);
  Value eval_filter(const Expr& expr, const ScopePtr& scope, const Value* input);
  Value eval_call(const Expr& expr, const ScopePtr& scope, const Value* caller);
  Value lookup(const std::string& name, const ScopePtr& scope);
  Arguments eval_arguments(const CallArguments& given, const ScopePtr& scope);
  bool compare(Expr::Compare op, const Value& a, const Value& b);

  Runtime& runtime_;
  std::unordered_map<std::string, Value> globals_;
  // Scopes that macros hold. A scope may hold a macro that holds the scope: these are emptied at the end, the latest
  // first, so that nothing leaks and no chain of scopes is freed by recursion.
  std::vector<ScopePtr> captured_;
};

// range, dict, namespace, raise_exception, strftime_now.
std::unordered_map<std::string, Value> global_functions();

}  // namespace weir::jinja
