// Tokens to statements and expressions, with the precedence of Jinja 3.1.
#pragma once

#include <string>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace weir::jinja {

class Parser {
 public:
  Parser(std::string name, std::vector<Token> tokens) : name_(std::move(name)), tokens_(std::move(tokens)) {}

  Block parse();

 private:
  // Nesting of the syntax. The interpreter recurses as deep as the tree is high.
  static constexpr int kMaxDepth = 100;
  static constexpr int kMaxHeight = 400;  // of one expression: a + b + c + ... counts each operator

  [[noreturn]] void fail(const std::string& what) const;
  const Token& look(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool take(std::string_view op);
  bool take_name(std::string_view name);
  void expect(std::string_view op);
  std::string expect_name();
  void expect_block_end();
  std::string describe() const;

  // Statements.
  using Ends = std::vector<std::string_view>;
  Block block(const Ends& ends);     // up to {% END, whose name is left for the caller
  Block body(std::string_view end);  // up to {% END %}, all of it taken
  void statement(Block& out);
  void if_statement(Statement& made);
  void for_statement(Statement& made);
  void set_statement(Statement& made);
  void macro_statement(Statement& made);
  void call_statement(Statement& made);
  void with_statement(Statement& made);
  Target target();
  Target target_part();
  void parameters(MacroBody& macro);
  std::shared_ptr<const MacroBody> finish_macro(std::shared_ptr<MacroBody> macro, std::string_view end);

  // Expressions, weakest operator first.
  ExprPtr expression();
  ExprPtr tuple_or_expression();
  ExprPtr or_expression();
  ExprPtr and_expression();
  ExprPtr not_expression();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concat_expression();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr bracketed();
  ExprPtr postfix(ExprPtr left);
  ExprPtr subscript(ExprPtr left);
  ExprPtr filters_and_tests(ExprPtr left);
  ExprPtr filter(ExprPtr left);
  ExprPtr test(ExprPtr left);
  CallArguments arguments();
  std::string dotted_name();
  ExprPtr constant(Value value);
  ExprPtr node(Expr::Kind kind, ExprPtr first = nullptr, ExprPtr second = nullptr, ExprPtr third = nullptr);
  ExprPtr finish(ExprPtr made);  // computes and checks the height

  std::string name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;                   // open for statements of this macro
  std::vector<MacroBody*> macros_;  // being parsed, innermost last
};

}  // namespace weir::jinja
