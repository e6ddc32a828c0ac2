// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace weir::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;  // *list, **dict
};

struct Expr {
  enum class Kind {
    kConstant,   // value
    kName,       // name
    kList,       // parts
    kTuple,      // parts
    kDict,       // parts: key, value, key, value ...
    kAttribute,  // parts[0].name
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]]; the last three may be null
    kCall,       // parts[0](arguments)
    kFilter,     // parts[0] | name(arguments); parts[0] is null at the head of a filter block
    kTest,       // parts[0] is name(arguments)
    kNot,
    kNegative,
    kPositive,
    kAnd,
    kOr,
    kConditional,  // parts[0] if parts[1] else parts[2]; parts[2] may be null
    kConcat,       // parts joined by ~
    kArithmetic,   // parts[0] op parts[1]
    kCompare,      // parts[0] compares[0] parts[1] compares[1] parts[2] ...
  };
  enum class Compare { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

  Kind kind = Kind::kConstant;
  int line = 0;
  int height = 1;  // longest path to a leaf
  std::string name;
  char op = 0;  // as arithmetic() takes it
  Value value;
  std::vector<ExprPtr> parts;
  std::vector<Compare> compares;
  CallArguments arguments;
};

// What a set or for statement assigns to.
struct Target {
  std::string name;  // of a variable, or of a namespace when `field` is given
  std::string field;
  std::vector<Target> parts;  // of a tuple, when `name` is empty
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null: undefined when not given
};

struct MacroBody {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Statement {
  enum class Kind {
    kText,      // text
    kOutput,    // expr
    kIf,        // tests[i] -> blocks[i]; one block more than tests: else
    kFor,       // target in expr [if tests[0]]: blocks[0] else blocks[1]
    kSet,       // target = expr
    kSetBlock,  // target = blocks[0], filtered by expr when given
    kMacro,     // macro
    kCall,      // expr called with macro as its caller
    kFilter,    // blocks[0] filtered by expr
    kWith,      // targets = values: blocks[0]
    kScope,     // blocks[0] in a scope of its own: generation
    kBreak,
    kContinue,
  };

  Kind kind = Kind::kText;
  int line = 0;
  Text text;
  ExprPtr expr;
  std::vector<ExprPtr> tests;
  std::vector<Block> blocks;
  std::vector<Target> targets;
  std::vector<ExprPtr> values;
  std::shared_ptr<const MacroBody> macro;
  bool recursive = false;
};

}  // namespace weir::jinja
