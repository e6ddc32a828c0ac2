#include "text/jinja_parser.h"

#include "text/jinja_runtime.h"

namespace weir::jinja {
namespace {

using Kind = Expr::Kind;

class Deeper {
 public:
  explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
  ~Deeper() { --depth_; }

 private:
  int& depth_;
};

int height_of(const ExprPtr& expr) { return expr ? expr->height : 0; }

}  // namespace

void Parser::fail(const std::string& what) const {
  throw TemplateError(concat(name_, ":", look().line, ": ", what), false);
}

bool Parser::take(std::string_view op) {
  if (!look().is(op)) return false;
  ++at_;
  return true;
}

bool Parser::take_name(std::string_view name) {
  if (!look().is_name(name)) return false;
  ++at_;
  return true;
}

void Parser::expect(std::string_view op) {
  if (!take(op)) fail(concat("expected '", op, "', found ", describe()));
}

std::string Parser::expect_name() {
  if (look().kind != Token::Kind::kName) fail(concat("expected a name, found ", describe()));
  return next().text;
}

std::string Parser::describe() const {
  switch (look().kind) {
    case Token::Kind::kData:
    case Token::Kind::kVariableBegin:
    case Token::Kind::kBlockBegin:
    case Token::Kind::kEnd:
      return "the end of the template";
    case Token::Kind::kVariableEnd:
    case Token::Kind::kBlockEnd:
      return "the end of the tag";
    default:
      return printable(look().text, 40);
  }
}

ExprPtr Parser::node(Kind kind, ExprPtr first, ExprPtr second, ExprPtr third) {
  auto made = std::make_unique<Expr>();
  made->kind = kind;
  made->line = first ? first->line : look().line;
  if (first) made->parts.push_back(std::move(first));
  if (second) made->parts.push_back(std::move(second));
  if (third) made->parts.push_back(std::move(third));
  return finish(std::move(made));
}

ExprPtr Parser::finish(ExprPtr made) {
  int height = 0;
  for (const ExprPtr& part : made->parts) height = std::max(height, height_of(part));
  for (const ExprPtr& part : made->arguments.positional) height = std::max(height, height_of(part));
  for (const auto& [key, part] : made->arguments.named) height = std::max(height, height_of(part));
  height = std::max({height, height_of(made->arguments.star), height_of(made->arguments.double_star)});
  made->height = height + 1;
  if (made->height > kMaxHeight) fail(concat("an expression chains more than ", kMaxHeight, " operators"));
  return made;
}

ExprPtr Parser::constant(Value value) {
  ExprPtr made = node(Kind::kConstant);
  made->value = std::move(value);
  return made;
}

ExprPtr Parser::expression() {
  const Deeper deeper(depth_);
  if (depth_ > kMaxDepth) fail(concat("expressions and statements nest more than ", kMaxDepth, " deep"));
  ExprPtr left = or_expression();
  while (take_name("if")) {
    ExprPtr test = or_expression();
    ExprPtr otherwise = take_name("else") ? expression() : nullptr;
    left = node(Kind::kConditional, std::move(left), std::move(test), std::move(otherwise));
  }
  return left;
}

ExprPtr Parser::tuple_or_expression() {
  ExprPtr first = expression();
  if (!look().is(",")) return first;
  ExprPtr made = node(Kind::kTuple);
  made->parts.push_back(std::move(first));
  while (take(",")) {
    const Token::Kind kind = look().kind;
    if (kind == Token::Kind::kVariableEnd || kind == Token::Kind::kBlockEnd || look().is(")")) break;
    made->parts.push_back(expression());
  }
  return finish(std::move(made));
}

ExprPtr Parser::or_expression() {
  ExprPtr left = and_expression();
  while (take_name("or")) {
    ExprPtr right = and_expression();
    left = node(Kind::kOr, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::and_expression() {
  ExprPtr left = not_expression();
  while (take_name("and")) {
    ExprPtr right = not_expression();
    left = node(Kind::kAnd, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::not_expression() {
  int count = 0;
  while (take_name("not")) ++count;
  if (count > kMaxDepth) fail("too many 'not'");
  ExprPtr made = comparison();
  for (; count > 0; --count) made = node(Kind::kNot, std::move(made));
  return made;
}

ExprPtr Parser::comparison() {
  using Compare = Expr::Compare;
  static constexpr std::pair<std::string_view, Compare> kOperators[] = {
      {"==", Compare::kEqual},        {"!=", Compare::kNotEqual}, {"<=", Compare::kLessEqual},
      {">=", Compare::kGreaterEqual}, {"<", Compare::kLess},      {">", Compare::kGreater}};
  ExprPtr left = sum();
  ExprPtr made;
  for (;;) {
    Compare compare = Compare::kIn;
    bool found = false;
    for (const auto& [op, meaning] : kOperators) {
      if (!found && take(op)) {
        compare = meaning;
        found = true;
      }
    }
    if (!found && take_name("in")) {
      found = true;
    } else if (!found && look().is_name("not") && look(1).is_name("in")) {
      at_ += 2;
      compare = Compare::kNotIn;
      found = true;
    }
    if (!found) break;
    if (!made) made = node(Kind::kCompare, std::move(left));
    made->compares.push_back(compare);
    made->parts.push_back(sum());
  }
  return made ? finish(std::move(made)) : std::move(left);
}

ExprPtr Parser::sum() {
  ExprPtr left = concat_expression();
  while (look().is("+") || look().is("-")) {
    const char op = next().text[0];
    ExprPtr right = concat_expression();
    left = node(Kind::kArithmetic, std::move(left), std::move(right));
    left->op = op;
  }
  return left;
}

ExprPtr Parser::concat_expression() {
  ExprPtr first = product();
  if (!look().is("~")) return first;
  ExprPtr made = node(Kind::kConcat, std::move(first));
  while (take("~")) made->parts.push_back(product());
  return finish(std::move(made));
}

ExprPtr Parser::product() {
  ExprPtr left = power();
  while (look().is("*") || look().is("/") || look().is("//") || look().is("%")) {
    const std::string text = next().text;
    ExprPtr right = power();
    left = node(Kind::kArithmetic, std::move(left), std::move(right));
    left->op = text == "//" ? 'f' : text[0];
  }
  return left;
}

ExprPtr Parser::power() {
  ExprPtr left = unary(true);
  while (take("**")) {
    ExprPtr right = unary(true);
    left = node(Kind::kArithmetic, std::move(left), std::move(right));
    left->op = '^';
  }
  return left;
}

// As in Jinja, filters bind to the whole of -x, and a sign binds weaker than attributes and calls.
ExprPtr Parser::unary(bool with_filters) {
  std::string signs;
  while (look().is("-") || look().is("+")) signs += next().text;
  if (signs.size() > kMaxDepth) fail("too many signs");
  ExprPtr made = postfix(primary());
  for (size_t i = signs.size(); i-- > 0;) {
    made = postfix(node(signs[i] == '-' ? Kind::kNegative : Kind::kPositive, std::move(made)));
  }
  return with_filters ? filters_and_tests(std::move(made)) : std::move(made);
}

ExprPtr Parser::primary() {
  const Token token = look();
  switch (token.kind) {
    case Token::Kind::kName: {
      next();
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") return constant(false);
      if (token.text == "none" || token.text == "None") return constant(None{});
      for (MacroBody* macro : macros_) {  // the outer ones too, as in Jinja
        macro->uses_caller |= token.text == "caller";
        macro->uses_varargs |= token.text == "varargs";
        macro->uses_kwargs |= token.text == "kwargs";
      }
      ExprPtr made = node(Kind::kName);
      made->line = token.line;
      made->name = token.text;
      return made;
    }
    case Token::Kind::kString: {
      std::string text;
      while (look().kind == Token::Kind::kString) text += next().text;
      return constant(make_text(std::move(text), Origin::kTemplate));
    }
    case Token::Kind::kInteger:
      next();
      return constant(token.integer);
    case Token::Kind::kFloat:
      next();
      return constant(token.number);
    default:
      return bracketed();
  }
}

ExprPtr Parser::bracketed() {
  if (take("(")) {
    if (take(")")) return node(Kind::kTuple);
    ExprPtr made = tuple_or_expression();
    expect(")");
    return made;
  }
  if (take("[")) {
    ExprPtr made = node(Kind::kList);
    while (!take("]")) {
      made->parts.push_back(expression());
      if (!look().is("]")) expect(",");
    }
    return finish(std::move(made));
  }
  if (take("{")) {
    ExprPtr made = node(Kind::kDict);
    while (!take("}")) {
      made->parts.push_back(expression());
      expect(":");
      made->parts.push_back(expression());
      if (!look().is("}")) expect(",");
    }
    return finish(std::move(made));
  }
  fail(concat("expected an expression, found ", describe()));
}

ExprPtr Parser::postfix(ExprPtr left) {
  for (;;) {
    if (look().is(".") || look().is("[")) {
      left = subscript(std::move(left));
    } else if (look().is("(")) {
      left = node(Kind::kCall, std::move(left));
      left->arguments = arguments();
      left = finish(std::move(left));
    } else {
      return left;
    }
  }
}

ExprPtr Parser::subscript(ExprPtr left) {
  if (take(".")) {
    if (look().kind == Token::Kind::kInteger) return node(Kind::kItem, std::move(left), constant(next().integer));
    const std::string name = expect_name();
    left = node(Kind::kAttribute, std::move(left));
    left->name = name;
    return left;
  }
  expect("[");
  ExprPtr start;
  if (!look().is(":")) {
    start = expression();
    if (take("]")) return node(Kind::kItem, std::move(left), std::move(start));
  }
  expect(":");
  ExprPtr stop = look().is(":") || look().is("]") ? nullptr : expression();
  ExprPtr step = take(":") && !look().is("]") ? expression() : nullptr;
  expect("]");
  ExprPtr made = node(Kind::kSlice, std::move(left));
  made->parts.push_back(std::move(start));
  made->parts.push_back(std::move(stop));
  made->parts.push_back(std::move(step));
  return finish(std::move(made));
}

ExprPtr Parser::filters_and_tests(ExprPtr left) {
  for (;;) {
    if (take("|")) {
      left = filter(std::move(left));
    } else if (take_name("is")) {
      left = test(std::move(left));
    } else if (look().is("(")) {
      left = postfix(std::move(left));
    } else {
      return left;
    }
  }
}

std::string Parser::dotted_name() {
  std::string name = expect_name();
  while (take(".")) name += "." + expect_name();
  return name;
}

ExprPtr Parser::filter(ExprPtr left) {
  std::string name = dotted_name();
  ExprPtr made = node(Kind::kFilter);
  if (left) made->line = left->line;
  made->parts.push_back(std::move(left));
  made->name = std::move(name);
  if (look().is("(")) made->arguments = arguments();
  return finish(std::move(made));
}

ExprPtr Parser::test(ExprPtr left) {
  const bool negated = take_name("not");
  ExprPtr made = node(Kind::kTest, std::move(left));
  made->name = dotted_name();
  const Token& token = look();
  const bool word = token.kind == Token::Kind::kName && token.text != "else" && token.text != "or" &&
                    token.text != "and" && token.text != "if" && token.text != "in" && token.text != "not";
  if (token.is("(")) {
    made->arguments = arguments();
  } else if (word || token.kind == Token::Kind::kString || token.kind == Token::Kind::kInteger ||
             token.kind == Token::Kind::kFloat || token.is("[") || token.is("{")) {
    if (token.is_name("is")) fail("tests can't be chained with 'is'");
    made->arguments.positional.push_back(postfix(primary()));
  }
  made = finish(std::move(made));
  return negated ? node(Kind::kNot, std::move(made)) : std::move(made);
}

CallArguments Parser::arguments() {
  CallArguments out;
  expect("(");
  while (!take(")")) {
    if (take("*")) {
      if (out.star || out.double_star) fail("only one *list fits in a call");
      out.star = expression();
    } else if (take("**")) {
      if (out.double_star) fail("only one **dict fits in a call");
      out.double_star = expression();
    } else if (look().kind == Token::Kind::kName && look(1).is("=")) {
      if (out.double_star) fail("a named argument can't follow **dict");
      std::string name = next().text;
      next();
      out.named.emplace_back(std::move(name), expression());
    } else {
      if (out.star || out.double_star || !out.named.empty()) fail("a positional argument follows a named one");
      out.positional.push_back(expression());
    }
    if (!look().is(")")) expect(",");
  }
  return out;
}

}  // namespace weir::jinja
