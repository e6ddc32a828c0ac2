#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

namespace weir {
namespace {

struct Expected {
  std::string text;
  std::optional<std::string> match;
};

// By the definition: the earliest end, then the longest.
Expected by_search(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0 &&
          (best == nullptr || stop.size() > best->size())) {
        best = &stop;
      }
    }
    if (best != nullptr) return {text.substr(0, end - best->size()), *best};
  }
  return {text, std::nullopt};
}

void expect_same(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  std::string text, out;
  StopStrings matcher(stops);
  for (const std::string& piece : pieces) {
    text += piece;
    out += matcher.push(piece);
    // What was given away is never taken back, and no more is held than could become a stop string.
    const Expected now = by_search(text, stops);
    ASSERT_TRUE(now.text.starts_with(out)) << text;
    size_t longest = 0;
    for (const std::string& stop : stops) longest = std::max(longest, stop.size());
    if (!now.match) {
      ASSERT_LT(text.size() - out.size(), std::max<size_t>(longest, 1)) << text;
    }
  }
  out += matcher.finish();
  const Expected expected = by_search(text, stops);
  ASSERT_EQ(out, expected.text) << text;
  ASSERT_EQ(matcher.matched(), expected.match.has_value()) << text;
  if (expected.match) {
    ASSERT_EQ(matcher.match(), *expected.match) << text;
  }
}

TEST(StopStringsTest, EverySplitOfATextGivesTheSame) {
  const std::vector<std::vector<std::string>> sets = {
      {"END"}, {"\n\n"}, {"aab"}, {"abc", "bc", "c"}, {"ababac", "abab"}, {"xyz", "yzw"}, {"é"}, {"aa", "a"}};
  const std::vector<std::string> texts = {"text END more", "a\n\nb", "aaaab", "ababc", "abababac", "xxyzw", "eèé!", ""};
  for (const auto& stops : sets) {
    for (const std::string& text : texts) {
      const size_t borders = text.empty() ? 0 : text.size() - 1;
      for (size_t cut = 0; cut < size_t{1} << borders; ++cut) {
        std::vector<std::string> pieces(1);
        for (size_t i = 0; i < text.size(); ++i) {
          pieces.back() += text[i];
          if (i < borders && (cut >> i & 1)) pieces.emplace_back();
        }
        expect_same(pieces, stops);
      }
    }
  }
}

TEST(StopStringsTest, RandomTextsOfFewLetters) {
  std::mt19937 random(1);
  const auto letters = [&](size_t most, size_t least) {
    std::string out(least + random() % (most - least + 1), 'a');
    for (char& c : out) c = static_cast<char>('a' + random() % 2);
    return out;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(1 + random() % 3), pieces(random() % 8);
    for (std::string& stop : stops) stop = letters(7, 1);
    for (std::string& piece : pieces) piece = letters(5, 0);
    expect_same(pieces, stops);
    StopStrings matcher(stops);
    for (const std::string& piece : pieces) matcher.push(piece);
    matches += matcher.matched();
  }
  EXPECT_GT(matches, 5000);
  EXPECT_LT(matches, 19000);
}

TEST(StopStringsTest, WithoutStopsNothingIsHeld) {
  StopStrings none;
  EXPECT_EQ(none.push("text"), "text");
  EXPECT_EQ(none.finish(), "");
  EXPECT_FALSE(none.matched());
}

TEST(StopStringsTest, AfterTheEndOfATextAnotherBegins) {
  StopStrings matcher({"ab"});
  EXPECT_EQ(matcher.push("xa"), "x");
  EXPECT_EQ(matcher.finish(), "a");
  EXPECT_EQ(matcher.push("b"), "b");
  EXPECT_EQ(matcher.push("ab!"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.push("more") + matcher.finish(), "");
}

}  // namespace
}  // namespace weir
