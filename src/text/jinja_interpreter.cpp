#include "text/jinja_interpreter.h"

#include "text/jinja_filters.h"
#include "text/jinja_lexer.h"
#include "text/jinja_parser.h"
#include "text/jinja_unicode.h"

namespace weir::jinja {

using Kind = Statement::Kind;

Template Template::compile(std::string name, std::string_view source, Limits limits) {
  if (source.size() > limits.source_bytes) {
    throw TemplateError(
        concat(name, ": the template has ", source.size(), " bytes; ", limits.source_bytes, " are allowed"), false);
  }
  if (!valid_utf8(source)) throw TemplateError(concat(name, ": the template is not UTF-8"), false);
  auto body = std::make_shared<MacroBody>();
  body->body = Parser(name, tokenize(name, source)).parse();
  Template out;
  out.name_ = std::move(name);
  out.limits_ = limits;
  out.body_ = std::move(body);
  return out;
}

Text Template::render(const Variables& variables, const std::tm& now) const {
  Runtime runtime(name_, limits_, now);
  return Interpreter(runtime, variables).run(body_->body);
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [known, held] : variables) {
    if (known == name) {
      held = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(Runtime& runtime, const Variables& variables)
    : runtime_(runtime), globals_(global_functions()) {
  for (const auto& [name, value] : variables) globals_.insert_or_assign(name, value);
}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : captured_) scope->variables.clear();
  while (!captured_.empty()) captured_.pop_back();
}

Text Interpreter::run(const Block& block) {
  TextBuilder out;
  run(block, std::make_shared<Scope>(), out);
  if (out.size() > runtime_.limits().output_bytes) {
    runtime_.fail("the output has more than ", runtime_.limits().output_bytes, " bytes");
  }
  return out.take();
}

void Interpreter::append(const Text& text, TextBuilder& out) {
  runtime_.charge(text.size());
  out.append(text);
  if (out.size() > runtime_.limits().output_bytes) {
    runtime_.fail("the output has more than ", runtime_.limits().output_bytes, " bytes");
  }
}

Interpreter::Flow Interpreter::run(const Block& block, const ScopePtr& scope, TextBuilder& out) {
  const Nest nest(runtime_);
  for (const auto& statement : block) {
    const Flow flow = run(*statement, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Statement& statement, const ScopePtr& scope, TextBuilder& out) {
  runtime_.step();
  runtime_.line = statement.line;
  switch (statement.kind) {
    case Kind::kText:
      append(statement.text, out);
      break;
    case Kind::kOutput: {
      const Value value = eval(*statement.expr, scope);
      append(to_text(runtime_, value), out);
      break;
    }
    case Kind::kIf:
      for (size_t i = 0; i < statement.blocks.size(); ++i) {
        if (i < statement.tests.size() && !eval(*statement.tests[i], scope).truthy()) continue;
        return run(statement.blocks[i], scope, out);
      }
      break;
    case Kind::kFor:
      run_for(statement, scope, eval(*statement.expr, scope), 0, out);
      break;
    case Kind::kSet:
      assign(statement.targets[0], eval(*statement.expr, scope), scope);
      break;
    case Kind::kSetBlock: {
      Value value = runtime_.text(run_aside(statement.blocks[0], scope));
      if (statement.expr) value = eval_filter(*statement.expr, scope, &value);
      assign(statement.targets[0], value, scope);
      break;
    }
    case Kind::kMacro:
      scope->set(statement.macro->name, make_macro(statement.macro, scope));
      break;
    case Kind::kCall: {
      const Value caller = make_macro(statement.macro, scope);
      append(to_text(runtime_, eval_call(*statement.expr, scope, &caller)), out);
      break;
    }
    case Kind::kFilter: {
      const Value body = runtime_.text(run_aside(statement.blocks[0], scope));
      append(to_text(runtime_, eval_filter(*statement.expr, scope, &body)), out);
      break;
    }
    case Kind::kWith:
      run_with(statement, scope, out);
      break;
    case Kind::kScope:
      append(run_aside(statement.blocks[0], scope), out);
      break;
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Text Interpreter::run_aside(const Block& block, const ScopePtr& scope) {
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  TextBuilder out;
  run(block, inner, out);
  return out.take();
}

void Interpreter::run_with(const Statement& statement, const ScopePtr& scope, TextBuilder& out) {
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  for (size_t i = 0; i < statement.targets.size(); ++i) {
    assign(statement.targets[i], eval(*statement.values[i], scope), inner);
  }
  run(statement.blocks[0], inner, out);
}

std::vector<Value> Interpreter::loop_items(const Statement& statement, const ScopePtr& scope, const Value& over) {
  std::vector<Value> items = items_of(runtime_, over);
  if (statement.tests.empty()) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    runtime_.step();
    auto inner = std::make_shared<Scope>();
    inner->parent = scope;
    assign(statement.targets[0], item, inner);
    if (eval(*statement.tests[0], inner).truthy()) kept.push_back(std::move(item));
  }
  return kept;
}

void Interpreter::run_for(const Statement& statement, const ScopePtr& scope, const Value& over, int level,
                          TextBuilder& out) {
  const Nest nest(runtime_);
  auto loop = std::make_shared<Loop>();
  loop->items = loop_items(statement, scope, over);
  loop->level = level;
  for (const Value& item : loop->items) loop->depth = std::max(loop->depth, item.depth());
  if (++loop->depth > Runtime::kMaxValueDepth) runtime_.fail("loops hold each other too deep");
  if (loop->items.empty()) {
    if (statement.blocks.size() > 1) {
      auto inner = std::make_shared<Scope>();
      inner->parent = scope;
      run(statement.blocks[1], inner, out);
    }
    return;
  }
  // A template may keep `loop` beyond the loop: then it must hold neither the scope nor itself.
  struct Finish {
    Loop& loop;
    ~Finish() {
      loop.running = false;
      loop.again = nullptr;
      loop.changed.clear();
    }
  } finish{*loop};
  if (statement.recursive) {
    loop->again = [&](Runtime& runtime, const Value& items) {
      TextBuilder inner;
      run_for(statement, scope, items, level + 1, inner);
      return runtime.text(inner.take());
    };
  }
  for (size_t i = 0; i < loop->items.size(); ++i) {
    runtime_.step();
    loop->index = i;
    auto inner = std::make_shared<Scope>();
    inner->parent = scope;
    inner->variables.reserve(4);
    inner->set("loop", Value(loop));
    runtime_.line = statement.line;
    assign(statement.targets[0], loop->items[i], inner);
    if (run(statement.blocks[0], inner, out) == Flow::kBreak) break;
  }
}

void Interpreter::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (target.parts.empty()) {
    if (target.field.empty()) return scope->set(target.name, value);
    Namespace* space = lookup(target.name, scope).space();
    if (!space) runtime_.fail("cannot assign attribute ", target.field, " on non-namespace object ", target.name);
    if (Value* held = space->find(target.field)) {
      *held = value;
    } else {
      if (space->fields.size() > 1000) runtime_.fail("a namespace has more than 1000 attributes");
      space->fields.emplace_back(target.field, value);
    }
    return;
  }
  const std::vector<Value> items = items_of(runtime_, value);
  if (items.size() != target.parts.size()) {
    runtime_.fail("expected ", target.parts.size(), " values to unpack, got ", items.size());
  }
  for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
}

Value Interpreter::make_macro(const std::shared_ptr<const MacroBody>& macro, const ScopePtr& scope) {
  runtime_.charge(256);
  if (captured_.empty() || captured_.back() != scope) captured_.push_back(scope);
  auto made = std::make_shared<Callable>();
  made->name = macro->name;
  made->depth = 1;
  made->call = [this, macro, scope](Runtime&, const Arguments& arguments) {
    return call_macro(*macro, scope, arguments);
  };
  return Value(std::shared_ptr<const Callable>(std::move(made)));
}

Value Interpreter::call_macro(const MacroBody& macro, const ScopePtr& closure, const Arguments& arguments) {
  const Nest nest(runtime_);
  auto scope = std::make_shared<Scope>();
  scope->parent = closure;
  std::vector<bool> used(arguments.named.size());
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : nullptr;
    for (size_t k = 0; k < arguments.named.size(); ++k) {
      if (arguments.named[k].first != parameter.name) continue;
      if (given) runtime_.fail("macro '", macro.name, "' got two values for '", parameter.name, "'");
      given = &arguments.named[k].second;
      used[k] = true;
    }
    if (given) {
      scope->set(parameter.name, *given);
    } else if (parameter.fallback) {
      scope->set(parameter.name, eval(*parameter.fallback, scope));
    } else {
      scope->set(parameter.name, Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
  }
  Dict rest;
  bool has_caller = false;
  for (size_t k = 0; k < arguments.named.size(); ++k) {
    const auto& [name, value] = arguments.named[k];
    if (used[k]) continue;
    if (name == "caller" && macro.uses_caller) {
      scope->set(name, value);
      has_caller = true;
    } else if (macro.uses_kwargs) {
      rest.put(make_text(name, Origin::kTemplate), value);
    } else {
      runtime_.fail("macro '", macro.name, "' takes no keyword argument '", name, "'");
    }
  }
  if (macro.uses_caller && !has_caller) scope->set("caller", Value::undefined("no caller defined"));
  if (macro.uses_kwargs) scope->set("kwargs", runtime_.dict(std::move(rest)));
  const size_t extra = std::min(macro.parameters.size(), arguments.positional.size());
  std::vector<Value> varargs(arguments.positional.begin() + static_cast<std::ptrdiff_t>(extra),
                             arguments.positional.end());
  if (macro.uses_varargs) {
    scope->set("varargs", runtime_.list(std::move(varargs), true));
  } else if (!varargs.empty()) {
    runtime_.fail("macro '", macro.name, "' takes not more than ", macro.parameters.size(), " arguments");
  }
  TextBuilder out;
  run(macro.body, scope, out);
  return runtime_.text(out.take());
}

}  // namespace weir::jinja
