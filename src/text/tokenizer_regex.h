// Regular expressions of tokenizer files, run by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace weir {

// Whose syntax a pattern is in. They differ from PCRE2 and from each other in what \s, \w, \p{Han}, [a&&b] and {1,3}+
// mean.
enum class RegexDialect { kOniguruma, kRust };

// The pattern for PCRE2 with UTF and UCP. Throws Error, with `where` in front, for constructs that are not known to
// mean the same.
std::string pcre2_pattern(std::string_view pattern, RegexDialect dialect, const std::string& where);

// Quoted, so that it matches itself.
std::string regex_literal(std::string_view text);

struct RegexMatch {
  size_t begin = 0, end = 0;
};

// Immutable; any number of threads may search with one.
class Regex {
 public:
  // Throws Error, with `where` (file and field) in front, when PCRE2 does not compile the pattern.
  Regex(std::string_view pattern, RegexDialect dialect, const std::string& where);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // A search from left to right over one valid UTF-8 text. Successive matches don't overlap; an empty match right
  // behind the one before is passed over.
  class Search {
   public:
    Search(const Regex& regex, std::string_view text);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    void reset(std::string_view text);  // the same expression over another text
    // False at the end. Throws Error when the match needs more steps or memory than allowed.
    bool next(RegexMatch& match);

   private:
    const Regex* regex_;
    std::string_view text_;
    void* data_;  // pcre2_match_data
    size_t from_ = 0;
    size_t last_end_ = std::string_view::npos;
  };

  std::string replace_all(std::string_view text, std::string_view content) const;

 private:
  void* code_ = nullptr;     // pcre2_code
  void* context_ = nullptr;  // pcre2_match_context
  std::string where_;
};

}  // namespace weir
