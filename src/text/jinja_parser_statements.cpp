// The statements of the parser: {% ... %}.
#include "text/jinja_parser.h"
#include "text/jinja_runtime.h"

namespace weir::jinja {
namespace {

using Kind = Statement::Kind;

}  // namespace

Block Parser::parse() {
  Block out = block({});
  if (look().kind != Token::Kind::kEnd) fail(concat("unexpected ", describe()));
  return out;
}

void Parser::expect_block_end() {
  if (look().kind != Token::Kind::kBlockEnd) fail(concat("expected '%}', found ", describe()));
  next();
}

Block Parser::block(const Ends& ends) {
  if (++depth_ > kMaxDepth) fail(concat("expressions and statements nest more than ", kMaxDepth, " deep"));
  Block out;
  for (;;) {
    const Token& token = look();
    if (token.kind == Token::Kind::kEnd) {
      if (!ends.empty()) fail(concat("expected '{% ", ends.back(), " %}'"));
      break;
    }
    if (token.kind == Token::Kind::kData) {
      auto made = std::make_unique<Statement>();
      made->line = token.line;
      made->text = Text(token.text, Origin::kTemplate);
      out.push_back(std::move(made));
      next();
    } else if (token.kind == Token::Kind::kVariableBegin) {
      next();
      auto made = std::make_unique<Statement>();
      made->kind = Kind::kOutput;
      made->line = token.line;
      made->expr = tuple_or_expression();
      if (look().kind != Token::Kind::kVariableEnd) fail(concat("expected '}}', found ", describe()));
      next();
      out.push_back(std::move(made));
    } else {
      next();  // {%
      bool ended = false;
      for (const std::string_view end : ends) ended |= look().is_name(end);
      if (ended) break;
      statement(out);
    }
  }
  --depth_;
  return out;
}

Block Parser::body(std::string_view end) {
  expect_block_end();
  Block out = block({end});
  next();
  // Jinja allows the name of a macro or block after its end.
  if (end == "endmacro" && look().kind == Token::Kind::kName) next();
  expect_block_end();
  return out;
}

void Parser::statement(Block& out) {
  auto made = std::make_unique<Statement>();
  made->line = look().line;
  const std::string word = expect_name();
  if (word == "if") {
    if_statement(*made);
  } else if (word == "for") {
    for_statement(*made);
  } else if (word == "set") {
    set_statement(*made);
  } else if (word == "macro") {
    macro_statement(*made);
  } else if (word == "call") {
    call_statement(*made);
  } else if (word == "with") {
    with_statement(*made);
  } else if (word == "filter") {
    made->kind = Kind::kFilter;
    made->expr = filters_and_tests(filter(nullptr));
    made->blocks.push_back(body("endfilter"));
  } else if (word == "generation") {
    made->kind = Kind::kScope;
    made->blocks.push_back(body("endgeneration"));
  } else if (word == "break" || word == "continue") {
    if (loops_ == 0) fail(concat("'", word, "' outside of a loop"));
    made->kind = word == "break" ? Kind::kBreak : Kind::kContinue;
    expect_block_end();
  } else {
    fail(concat("the tag ", printable(word, 40), " is unknown or not allowed here"));
  }
  out.push_back(std::move(made));
}

void Parser::if_statement(Statement& made) {
  made.kind = Kind::kIf;
  for (;;) {
    made.tests.push_back(tuple_or_expression());
    expect_block_end();
    made.blocks.push_back(block({"elif", "else", "endif"}));
    if (take_name("elif")) continue;
    if (take_name("else")) {
      expect_block_end();
      made.blocks.push_back(block({"endif"}));
    }
    break;
  }
  next();  // endif
  expect_block_end();
}

void Parser::for_statement(Statement& made) {
  made.kind = Kind::kFor;
  made.targets.push_back(target());
  if (!take_name("in")) fail(concat("expected 'in', found ", describe()));
  // Not a whole expression: its `if` is the loop's filter.
  made.expr = or_expression();
  if (look().is(",")) {
    ExprPtr tuple = node(Expr::Kind::kTuple, std::move(made.expr));
    while (take(",")) tuple->parts.push_back(or_expression());
    made.expr = finish(std::move(tuple));
  }
  if (take_name("if")) made.tests.push_back(expression());
  made.recursive = take_name("recursive");
  expect_block_end();
  ++loops_;
  made.blocks.push_back(block({"else", "endfor"}));
  --loops_;
  if (take_name("else")) {
    expect_block_end();
    made.blocks.push_back(block({"endfor"}));
  }
  next();  // endfor
  expect_block_end();
}

Target Parser::target_part() {
  if (take("(")) {
    Target inner = target();
    expect(")");
    return inner;
  }
  Target out;
  out.name = expect_name();
  for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
    if (out.name == reserved) fail(concat("can't assign to ", out.name));
  }
  if (take(".")) out.field = expect_name();
  return out;
}

Target Parser::target() {
  if (++depth_ > kMaxDepth) fail("targets nest too deep");
  Target first = target_part();
  --depth_;
  if (!look().is(",")) return first;
  Target out;
  out.parts.push_back(std::move(first));
  while (take(",")) {
    if (look().kind != Token::Kind::kName && !look().is("(")) break;
    if (look().is_name("in")) break;
    out.parts.push_back(target_part());
  }
  return out;
}

void Parser::set_statement(Statement& made) {
  made.targets.push_back(target());
  if (take("=")) {
    made.kind = Kind::kSet;
    made.expr = tuple_or_expression();
    return expect_block_end();
  }
  made.kind = Kind::kSetBlock;
  if (!made.targets[0].parts.empty()) fail("a set block has one target");
  if (take("|")) made.expr = filters_and_tests(filter(nullptr));
  made.blocks.push_back(body("endset"));
}

void Parser::parameters(MacroBody& macro) {
  expect("(");
  while (!take(")")) {
    Parameter parameter;
    parameter.name = expect_name();
    if (take("=")) {
      parameter.fallback = expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().fallback) {
      fail("a parameter without a default follows one with a default");
    }
    macro.parameters.push_back(std::move(parameter));
    if (!look().is(")")) expect(",");
  }
}

std::shared_ptr<const MacroBody> Parser::finish_macro(std::shared_ptr<MacroBody> macro, std::string_view end) {
  macros_.push_back(macro.get());
  const int loops = std::exchange(loops_, 0);
  macro->body = body(end);
  loops_ = loops;
  macros_.pop_back();
  return macro;
}

void Parser::macro_statement(Statement& made) {
  made.kind = Kind::kMacro;
  auto macro = std::make_shared<MacroBody>();
  macro->name = expect_name();
  macros_.push_back(macro.get());  // defaults may name caller
  parameters(*macro);
  macros_.pop_back();
  made.macro = finish_macro(std::move(macro), "endmacro");
}

void Parser::call_statement(Statement& made) {
  made.kind = Kind::kCall;
  auto macro = std::make_shared<MacroBody>();
  macro->name = "caller";
  if (look().is("(")) parameters(*macro);
  made.expr = postfix(primary());
  if (made.expr->kind != Expr::Kind::kCall) fail("a call block needs a call");
  made.macro = finish_macro(std::move(macro), "endcall");
}

void Parser::with_statement(Statement& made) {
  made.kind = Kind::kWith;
  while (look().kind != Token::Kind::kBlockEnd) {
    if (!made.targets.empty()) expect(",");
    made.targets.push_back(target_part());
    expect("=");
    made.values.push_back(expression());
  }
  made.blocks.push_back(body("endwith"));
}

}  // namespace weir::jinja
