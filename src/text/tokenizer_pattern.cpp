// Translates regular expressions of tokenizer files to PCRE2's syntax.
#include <array>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

constexpr int kMaxNesting = 50;
// Spelled out, since PCRE2's own \s and \w are other sets.
constexpr std::string_view kSpaceItems =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kOnigurumaWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kOnigurumaMore =
    R"(\xb2\xb3\xb9\xbc-\xbe)";  // to \w outside classes, by a table for Latin-1
constexpr std::string_view kRustWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d})";
constexpr std::string_view kAnyCharacter = R"([\x{0}-\x{10ffff}])";

constexpr std::array<std::string_view, 30> kCategories = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                                          "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                                          "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

// A set of characters: `items` as they stand in a PCRE2 class, and sets that a class can't hold.
struct CharacterSet {
  bool negated = false;
  std::string items;
  std::vector<CharacterSet> others;                                     // united with items
  std::optional<std::set<std::string_view>> categories{std::in_place};  // items are exactly these, else nullopt

  void add(std::string_view item) {
    items += item;
    categories.reset();
  }
  bool is_class() const { return others.empty() && !items.empty(); }
};

std::string regex_of(const CharacterSet& set) {
  if (set.is_class()) return concat(set.negated ? "[^" : "[", set.items, "]");
  std::string united;
  if (!set.items.empty()) united = concat("[", set.items, "]");
  for (const CharacterSet& other : set.others) united += concat(united.empty() ? "" : "|", regex_of(other));
  if (united.empty()) united = "(?!)";
  return set.negated ? concat("(?:(?!", united, ")", kAnyCharacter, ")") : concat("(?:", united, ")");
}

// Both of two sets. Where it can be, as one class by De Morgan: not (other categories, or what b excludes): a class is
// matched in a loop, an assertion needs a backtracking point per character.
CharacterSet intersection(const CharacterSet& a, const CharacterSet& b) {
  CharacterSet both;
  both.categories.reset();
  if (!a.negated && a.is_class() && a.categories && b.negated && b.is_class()) {
    both.negated = true;
    for (std::string_view category : kCategories) {
      if (!a.categories->contains(category)) both.items += concat("\\p{", category, "}");
    }
    both.items += b.items;
    return both;
  }
  // not (not a, or not b)
  both.negated = true;
  for (CharacterSet side : {a, b}) {
    side.negated = !side.negated;
    both.others.push_back(std::move(side));
  }
  return both;
}

class Translator {
 public:
  Translator(std::string_view pattern, RegexDialect dialect, const std::string& where)
      : pattern_(pattern), onig_(dialect == RegexDialect::kOniguruma), where_(where) {}

  std::string run() {
    while (!done()) step();
    return std::move(out_);
  }

 private:
  std::string word_items(bool in_class) const {
    return onig_ ? concat(kOnigurumaWord, in_class ? "" : kOnigurumaMore) : std::string(kRustWord);
  }
  bool done() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail(where_, ": regular expression ", printable(pattern_), ": ", what, " at byte ", at_, " is not supported");
  }
  std::string_view character() {
    const std::string_view c = pattern_.substr(at_, utf8_length(pattern_[at_]));
    at_ += c.size();
    return c;
  }
  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  void step() {
    const char c = peek();
    if (c == '\\') return assertion() ? void() : atom(regex_of(escape(false)));
    if (c == '[') return atom(regex_of(char_class(0)));
    if (c == '(') return open();
    if (c == ')') {
      if (groups_.empty()) refuse("an unmatched )");
      atom_ = groups_.back();
      groups_.pop_back();
      out_ += c;
      ++at_;
      return;
    }
    if (c == '*' || c == '+' || c == '?') {
      out_ += c;
      ++at_;
      if (peek() == '+' || peek() == '?') out_ += pattern_[at_++];
      return;
    }
    if (c == '{') return counted();
    atom(character());
  }

  // \b and the like. PCRE2's own \b knows other word characters.
  bool assertion() {
    const char c = peek(1);
    if (c == '\0' || std::string_view("bBAzZG").find(c) == std::string_view::npos) return false;
    at_ += 2;
    const std::string word = concat("[", word_items(false), "]");
    const std::string_view inner = c == 'b' ? "(?!" : "(?=", outer = c == 'b' ? "(?=" : "(?!";
    if (c == 'b' || c == 'B') {
      atom(concat("(?:(?<=", word, ")", inner, word, ")|(?<!", word, ")", outer, word, "))"));
    } else {
      atom(concat("\\", c));
    }
    return true;
  }

  void open() {
    groups_.push_back(out_.size());
    if (groups_.size() > static_cast<size_t>(kMaxNesting)) refuse("nesting this deep");
    ++at_;
    out_ += '(';
    if (peek() != '?') return;
    for (std::string_view plain : {"?:", "?=", "?!", "?<=", "?<!", "?>", "?|"}) {
      if (take(plain)) {
        if (plain == "?|") refuse("(?|");
        out_ += plain;
        return;
      }
    }
    if (take("?<") || take("?P<")) {
      out_ += "?<";
      while (!done() && peek() != '>') out_ += pattern_[at_++];
      return;
    }
    out_ += '?';
    ++at_;
    while (peek() == 'i' || peek() == 'm' || peek() == 's' || peek() == '-') {
      // Oniguruma's m lets the dot match line ends, which is s elsewhere.
      if (onig_ && peek() == 's') refuse("the option s");
      out_ += onig_ && peek() == 'm' ? 's' : peek();
      ++at_;
    }
    if (peek() != ':' && peek() != ')') refuse("this kind of group");
    if (peek() == ':') out_ += pattern_[at_++];
  }

  // {n}, {n,}, {n,m}; in Oniguruma also {,m}, and a + behind repeats once more instead of being possessive.
  void counted() {
    size_t end = at_ + 1;
    while (end < pattern_.size() && ((pattern_[end] >= '0' && pattern_[end] <= '9') || pattern_[end] == ',')) ++end;
    const std::string_view body = pattern_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = body.find(',');
    const bool low = !body.empty() && body[0] != ',';
    const bool valid = end < pattern_.size() && pattern_[end] == '}' && !body.empty() &&
                       (comma == body.npos || body.find(',', comma + 1) == body.npos) &&
                       (low || (onig_ && body.size() > 1));
    if (!valid) {
      ++at_;
      return atom("\\{");
    }
    out_ += concat("{", low ? "" : "0", body, "}");
    at_ = end + 1;
    if (peek() == '+') {
      ++at_;
      if (onig_) {
        out_.insert(atom_, "(?:");
        out_ += ")+";
      } else {
        out_ += '+';
      }
    } else if (peek() == '?') {
      if (onig_ && comma == body.npos) refuse("{n}?");
      ++at_;
      out_ += '?';
    }
  }

  static CharacterSet set_of(std::string_view items, bool negated) {
    CharacterSet set;
    set.negated = negated;
    set.add(items);
    return set;
  }

  // A backslash sequence that stands for characters.
  CharacterSet escape(bool in_class) {
    ++at_;
    if (done()) refuse("a backslash at the end");
    const char c = peek();
    switch (c) {
      case 's':
      case 'S':
        ++at_;
        return set_of(kSpaceItems, c == 'S');
      case 'w':
      case 'W':
        ++at_;
        return set_of(word_items(in_class), c == 'W');
      case 'd':
      case 'D':
        ++at_;
        return set_of("\\p{Nd}", c == 'D');
      case 'h':
      case 'H':
        if (!onig_) refuse("\\h");
        ++at_;
        return set_of("0-9a-fA-F", c == 'H');
      case 'p':
      case 'P':
        return property();
      default:
        break;
    }
    return set_of(escaped_character(), false);
  }

  std::string escaped_character() {
    const char c = peek();
    if (c == 'n' || c == 'r' || c == 't' || c == 'f' || c == 'a' || c == 'e') {
      ++at_;
      return concat("\\", c);
    }
    if (c == 'v') {
      ++at_;
      return "\\x0b";
    }
    if (c == 'x' || c == 'u' || c == 'U') return code_point();
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || static_cast<unsigned char>(c) >= 0x80) refuse(concat("\\", letter ? c : '?'));
    ++at_;
    return concat("\\", c);
  }

  // \xHH, \uHHHH, \x{H...}, \u{H...}
  std::string code_point() {
    const size_t digits = peek() == 'x' ? 2 : peek() == 'u' ? 4 : 8;
    ++at_;
    size_t begin = at_, end = at_ + digits, next = end;
    if (peek() == '{') {
      begin = at_ + 1;
      end = pattern_.find('}', begin);
      next = end + 1;
    }
    if (end == std::string_view::npos || end > pattern_.size() || end == begin || end - begin > 8) refuse("this \\x");
    const std::string_view hex = pattern_.substr(begin, end - begin);
    if (hex.find_first_not_of("0123456789abcdefABCDEF") != hex.npos) refuse("this \\x");
    at_ = next;
    return concat("\\x{", hex, "}");
  }

  CharacterSet property() {
    bool negated = peek() == 'P';
    ++at_;
    std::string_view name;
    if (take("{")) {
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) refuse("a property without }");
      name = pattern_.substr(at_, end - at_);
      at_ = end + 1;
      if (name.starts_with("^")) {
        negated = !negated;
        name.remove_prefix(1);
      }
    } else if (!done()) {
      name = character();
    }
    CharacterSet set;
    set.negated = negated;
    std::set<std::string_view> categories;
    for (std::string_view category : kCategories) {
      if (category == name || (name.size() == 1 && category[0] == name[0])) categories.insert(category);
    }
    if (!categories.empty()) {
      set.items = concat("\\p{", name, "}");
      set.categories = std::move(categories);
      return set;
    }
    static const std::set<std::string_view> kBinary = {
        "Alphabetic", "Emoji", "Uppercase", "Lowercase", "ASCII", "Ideographic", "Extended_Pictographic"};
    if (name == "White_Space" || name == "Space") {
      set.add(kSpaceItems);
    } else if (kBinary.contains(name)) {
      set.add(concat("\\p{", name, "}"));
    } else {
      // A script. PCRE2's \p{Han} is the script's extensions, which hold punctuation shared by several scripts.
      for (char c : name) {
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_')) refuse("this property");
      }
      set.add(concat("\\p{sc:", name, "}"));
    }
    return set;
  }

  CharacterSet char_class(int depth) {
    if (depth > kMaxNesting) refuse("nesting this deep");
    ++at_;
    const bool negated = take("^");
    CharacterSet set = class_body(depth, true);
    while (take("&&")) set = intersection(set, class_body(depth, false));
    if (!take("]")) refuse("a class without ]");
    if (negated) set.negated = !set.negated;
    if (negated) set.categories.reset();
    return set;
  }

  CharacterSet class_body(int depth, bool first) {
    CharacterSet set;
    for (bool begin = first;; begin = false) {
      if (done()) refuse("a class without ]");
      if ((peek() == ']' && !begin) || (peek() == '&' && peek(1) == '&')) break;
      CharacterSet item;
      bool single = false;
      if (pattern_.substr(at_).starts_with("[:")) {
        refuse("a POSIX class");
      } else if (peek() == '[') {
        item = char_class(depth + 1);
      } else {
        item = class_item(single);
        if (single && peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
          ++at_;
          bool end_single = false;
          const CharacterSet end = class_item(end_single);
          if (!end_single) refuse("this range");
          item.items += concat("-", end.items);
        }
      }
      unite(set, item);
    }
    // One set alone, as in [^\s&&[...]] or [[^a]]: itself.
    if (set.items.empty() && set.others.size() == 1) {
      CharacterSet only = std::move(set.others[0]);
      return only;
    }
    return set;
  }

  CharacterSet class_item(bool& single) {
    if (peek() == '\\') {
      const size_t begin = at_;
      CharacterSet set = escape(true);
      const char c = pattern_[begin + 1];
      single = std::string_view("sSwWdDhHpP").find(c) == std::string_view::npos;
      return set;
    }
    single = true;
    const std::string_view c = character();
    CharacterSet set;
    // Characters that mean something in PCRE2's classes.
    set.add(c == "[" || c == "]" || c == "^" || c == "-" || c == "\\" ? concat("\\", c) : std::string(c));
    return set;
  }

  static void unite(CharacterSet& set, CharacterSet& item) {
    if (item.negated || !item.others.empty()) {
      set.categories.reset();
      set.others.push_back(std::move(item));
      return;
    }
    set.items += item.items;
    if (set.categories && item.categories) {
      set.categories->insert(item.categories->begin(), item.categories->end());
    } else {
      set.categories.reset();
    }
  }

  std::string_view pattern_;
  bool onig_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
  size_t atom_ = 0;             // where the last atom begins in out_
  std::vector<size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, RegexDialect dialect, const std::string& where) {
  return Translator(pattern, dialect, where).run();
}

std::string regex_literal(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-&#").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace weir
