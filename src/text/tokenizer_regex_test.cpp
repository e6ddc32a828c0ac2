#include "text/tokenizer_regex.h"

#include <gtest/gtest.h>

#include <vector>

#include "formats/testing.h"

namespace weir {
namespace {

using testing::error_of;
using Parts = std::vector<std::string>;

Parts matches(std::string_view pattern, std::string_view text, RegexDialect dialect = RegexDialect::kOniguruma) {
  const Regex regex(pattern, dialect, "test");
  Regex::Search search(regex, text);
  Parts out;
  for (RegexMatch match; search.next(match);) out.emplace_back(text.substr(match.begin, match.end - match.begin));
  return out;
}

TEST(Regex, SpacesAreTheWhiteSpaceOfUnicode) {
  // U+0085 is white space to Unicode and not to PCRE2; U+180E the other way round.
  EXPECT_EQ(matches(R"(\s+)", "a\u0085b\u180ec\u2003 d"), (Parts{"\u0085", "\u2003 "}));
  EXPECT_EQ(matches(R"([^\s]+)", "a\u0085b"), (Parts{"a", "b"}));
  EXPECT_EQ(matches(R"([\S]+)", "a\u0085b"), (Parts{"a", "b"}));
  EXPECT_EQ(matches(R"([^\S\n]+)", " \n\t"), (Parts{" ", "\t"}));
}

TEST(Regex, ScriptsAreScriptsNotTheirExtensions) {
  // U+3001 is punctuation that Han shares with other scripts; U+3005 and U+3007 are Han.
  EXPECT_EQ(matches(R"([\p{Han}]+)", "中、々〇a"), (Parts{"中", "々〇"}));
}

TEST(Regex, IntersectsClasses) {
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", "ab中é1"), (Parts{"ab", "é"}));
  EXPECT_EQ(matches(R"([a-z&&[^aeiou]]+)", "harbour"), (Parts{"h", "rb", "r"}));
  EXPECT_EQ(matches(R"([^a-z&&[^aeiou]]+)", "ha1"), (Parts{"a1"}));
  EXPECT_EQ(matches(R"([[a-c][x-z]]+)", "abmxy"), (Parts{"ab", "xy"}));
  EXPECT_EQ(matches(R"([[^a]b]+)", "aab"), (Parts{"b"}));
  // As one class, not as an assertion for each character.
  EXPECT_EQ(pcre2_pattern(R"([\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}&&[^\p{Han}]])", RegexDialect::kRust, "t"),
            R"([^\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{sc:Han}])");
}

TEST(Regex, KnowsWhoseSyntaxItReads) {
  EXPECT_EQ(matches(R"(\d{1,3}+)", "1234567"), (Parts{"1234567"}));  // repeated once more
  EXPECT_EQ(matches(R"(\d{1,3}+)", "1234567", RegexDialect::kRust), (Parts{"123", "456", "7"}));
  EXPECT_EQ(matches(R"(^.)", "a\nb"), (Parts{"a", "b"}));
  EXPECT_EQ(matches(R"(^.)", "a\nb", RegexDialect::kRust), (Parts{"a"}));
  EXPECT_EQ(matches(R"(\w+)", "a\u200db²"), (Parts{"a", "b²"}));
  EXPECT_EQ(matches(R"(\w+)", "a\u200db²", RegexDialect::kRust), (Parts{"a\u200db"}));
  EXPECT_EQ(matches(R"(\h+)", "fg9"), (Parts{"f", "9"}));
}

TEST(Regex, ContractionsIgnoreCaseAsUnicodeHasIt) {
  EXPECT_EQ(matches("(?i:'s|'t)", "'s 'S '\u017f 'T"), (Parts{"'s", "'S", "'\u017f", "'T"}));
}

TEST(Regex, MatchesNothingOnceAtEachPlace) {
  EXPECT_EQ(matches("x*", "axb"), (Parts{"", "x", ""}));
  EXPECT_EQ(Regex("e", RegexDialect::kRust, "t").replace_all("there", ""), "thr");
  EXPECT_EQ(matches(regex_literal("a.b[c]"), "a.b[c] axb[c]"), (Parts{"a.b[c]"}));
}

TEST(Regex, SaysWhatItDoesNotKnow) {
  const auto error = [](std::string_view pattern) {
    return error_of([&] { Regex(pattern, RegexDialect::kOniguruma, "f"); });
  };
  EXPECT_EQ(error("[[:alpha:]]"), "f: regular expression '[[:alpha:]]': a POSIX class at byte 1 is not supported");
  EXPECT_EQ(error("a\\K"), R"(f: regular expression 'a\\K': \K at byte 2 is not supported)");
  EXPECT_EQ(error("(?x) a"), "f: regular expression '(?x) a': this kind of group at byte 2 is not supported");
  EXPECT_EQ(error("[a"), "f: regular expression '[a': a class without ] at byte 2 is not supported");
  EXPECT_NE(error("a**b("), "no error");
  EXPECT_NE(error("\\p{Nonsense}"), "no error");
  EXPECT_NE(error(std::string(200, '(')), "no error");
  EXPECT_NE(error(std::string(200, '[')), "no error");
}

TEST(Regex, GivesUpOnPatternsThatBacktrackWithoutEnd) {
  const Regex regex("(a+)+$", RegexDialect::kRust, "f: field 'x'");
  const std::string text = std::string(64, 'a') + "b";
  const std::string message = error_of([&] {
    Regex::Search search(regex, text);
    RegexMatch match;
    search.next(match);
  });
  EXPECT_EQ(message, "f: field 'x': regular expression gives up on this text: match limit exceeded");
}

}  // namespace
}  // namespace weir
