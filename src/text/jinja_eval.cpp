// The expressions of the interpreter.
#include "text/jinja_filters.h"
#include "text/jinja_interpreter.h"

namespace weir::jinja {

using Kind = Expr::Kind;

Value Interpreter::lookup(const std::string& name, const ScopePtr& scope) {
  for (const Scope* at = scope.get(); at; at = at->parent.get()) {
    for (const auto& [known, value] : at->variables) {
      if (known == name) return value;
    }
  }
  const auto found = globals_.find(name);
  return found != globals_.end() ? found->second : Value::undefined("'" + name + "' is undefined");
}

Value Interpreter::eval(const Expr& expr, const ScopePtr& scope) {
  const Nest nest(runtime_);
  runtime_.step();
  if (expr.line > 0) runtime_.line = expr.line;
  switch (expr.kind) {
    case Kind::kConstant:
      return expr.value;
    case Kind::kName:
      return lookup(expr.name, scope);
    case Kind::kList:
    case Kind::kTuple: {
      std::vector<Value> items;
      for (const ExprPtr& part : expr.parts) items.push_back(eval(*part, scope));
      return runtime_.list(std::move(items), expr.kind == Kind::kTuple);
    }
    case Kind::kDict:
      return eval_dict(expr, scope);
    case Kind::kAttribute:
      return attribute(runtime_, eval(*expr.parts[0], scope), expr.name);
    case Kind::kItem: {
      const Value object = eval(*expr.parts[0], scope);
      return item(runtime_, object, eval(*expr.parts[1], scope));
    }
    case Kind::kSlice: {
      const Value object = eval(*expr.parts[0], scope);
      Value bounds[3] = {None{}, None{}, None{}};
      for (int i = 0; i < 3; ++i) {
        if (expr.parts[i + 1]) bounds[i] = eval(*expr.parts[i + 1], scope);
      }
      return slice(runtime_, object, bounds[0], bounds[1], bounds[2]);
    }
    case Kind::kCall:
      return eval_call(expr, scope, nullptr);
    case Kind::kFilter:
      return eval_filter(expr, scope, nullptr);
    case Kind::kTest: {
      const Value input = eval(*expr.parts[0], scope);
      return apply_test(runtime_, expr.name, input, eval_arguments(expr.arguments, scope));
    }
    case Kind::kNot:
      return !eval(*expr.parts[0], scope).truthy();
    case Kind::kNegative:
    case Kind::kPositive: {
      const Value value = eval(*expr.parts[0], scope);
      if (value.is_undefined()) runtime_.fail_undefined(value);
      if (!value.is_number()) runtime_.fail("bad operand type for unary sign: '", value.type_name(), "'");
      return value.is_double() && expr.kind == Kind::kNegative
                 ? Value(-value.number())
                 : arithmetic(runtime_, expr.kind == Kind::kNegative ? '-' : '+', 0, value);
    }
    case Kind::kAnd: {
      Value left = eval(*expr.parts[0], scope);
      return left.truthy() ? eval(*expr.parts[1], scope) : left;
    }
    case Kind::kOr: {
      Value left = eval(*expr.parts[0], scope);
      return left.truthy() ? left : eval(*expr.parts[1], scope);
    }
    case Kind::kConditional:
      if (eval(*expr.parts[1], scope).truthy()) return eval(*expr.parts[0], scope);
      if (expr.parts.size() > 2) return eval(*expr.parts[2], scope);
      return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
    case Kind::kConcat: {
      TextBuilder out;
      for (const ExprPtr& part : expr.parts) append_text(runtime_, eval(*part, scope), out);
      return runtime_.text(out.take());
    }
    case Kind::kArithmetic: {
      const Value left = eval(*expr.parts[0], scope);
      const Value right = eval(*expr.parts[1], scope);
      return arithmetic(runtime_, expr.op, left, right);
    }
    case Kind::kCompare:
      return eval_compare(expr, scope);
  }
  return {};
}

Value Interpreter::eval_dict(const Expr& expr, const ScopePtr& scope) {
  Dict dict;
  for (size_t i = 0; i < expr.parts.size(); i += 2) {
    Value key = eval(*expr.parts[i], scope);
    if (Dict::key_of(key).empty()) runtime_.fail("a '", key.type_name(), "' can't be a key of a dict");
    dict.put(std::move(key), eval(*expr.parts[i + 1], scope));
  }
  return runtime_.dict(std::move(dict));
}

bool Interpreter::compare(Expr::Compare op, const Value& a, const Value& b) {
  using Compare = Expr::Compare;
  switch (op) {
    case Compare::kEqual:
      return equal(runtime_, a, b);
    case Compare::kNotEqual:
      return !equal(runtime_, a, b);
    case Compare::kLess:
      return less(runtime_, a, b);
    case Compare::kGreater:
      return less(runtime_, b, a);
    case Compare::kLessEqual:
      return less(runtime_, a, b) || equal(runtime_, a, b);
    case Compare::kGreaterEqual:
      return less(runtime_, b, a) || equal(runtime_, a, b);
    case Compare::kIn:
      return contains(runtime_, b, a);
    case Compare::kNotIn:
      return !contains(runtime_, b, a);
  }
  return false;
}

Value Interpreter::eval_compare(const Expr& expr, const ScopePtr& scope) {
  Value left = eval(*expr.parts[0], scope);
  for (size_t i = 0; i < expr.compares.size(); ++i) {
    Value right = eval(*expr.parts[i + 1], scope);
    if (!compare(expr.compares[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Arguments Interpreter::eval_arguments(const CallArguments& given, const ScopePtr& scope) {
  Arguments out;
  for (const ExprPtr& part : given.positional) out.positional.push_back(eval(*part, scope));
  if (given.star) {
    for (Value& part : items_of(runtime_, eval(*given.star, scope))) out.positional.push_back(std::move(part));
  }
  for (const auto& [name, part] : given.named) out.named.emplace_back(name, eval(*part, scope));
  if (given.double_star) {
    const Value rest = eval(*given.double_star, scope);
    if (!rest.dict()) runtime_.fail("the argument after ** must be a mapping, not ", rest.type_name());
    runtime_.charge(rest.dict()->entries.size() * 64);
    for (const auto& [key, value] : rest.dict()->entries) {
      if (!key.text()) runtime_.fail("keywords must be strings");
      out.named.emplace_back(key.text()->bytes(), value);
    }
  }
  return out;
}

// `input` is what a filter or set block made, for a filter without an operand of its own.
Value Interpreter::eval_filter(const Expr& expr, const ScopePtr& scope, const Value* input) {
  const Nest nest(runtime_);
  if (expr.kind != Kind::kFilter) runtime_.fail("a filter block takes filters only");
  const Expr* operand = expr.parts[0].get();
  const Value value = !operand                                  ? *input
                      : input && operand->kind == Kind::kFilter ? eval_filter(*operand, scope, input)
                                                                : eval(*operand, scope);
  const Arguments arguments = eval_arguments(expr.arguments, scope);
  if (expr.line > 0) runtime_.line = expr.line;
  return apply_filter(runtime_, expr.name, value, arguments);
}

Value Interpreter::eval_call(const Expr& expr, const ScopePtr& scope, const Value* caller) {
  const Value callee = eval(*expr.parts[0], scope);
  Arguments arguments = eval_arguments(expr.arguments, scope);
  if (caller) arguments.named.emplace_back("caller", *caller);
  runtime_.line = expr.line;
  if (const Callable* callable = callee.callable()) return callable->call(runtime_, arguments);
  if (const std::shared_ptr<Loop> loop = callee.loop()) {
    if (!loop->again || arguments.positional.size() != 1)
      runtime_.fail("this loop can't be called: it is not recursive");
    const auto again = loop->again;  // outlives the call
    return again(runtime_, arguments.positional[0]);
  }
  if (callee.is_undefined()) runtime_.fail_undefined(callee);
  runtime_.fail("'", callee.type_name(), "' object is not callable");
}

}  // namespace weir::jinja
