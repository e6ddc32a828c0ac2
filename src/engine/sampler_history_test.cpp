#include "engine/sampler_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/simd/kernel_test.h"

namespace weir {
namespace {

void expect_counts(const TokenHistory& history, const std::vector<int32_t>& tokens, int64_t prompt, int32_t ids) {
  ASSERT_EQ(history.length(), static_cast<int64_t>(tokens.size()));
  ASSERT_EQ(history.prompt_length(), prompt);
  const auto middle = tokens.begin() + prompt;
  for (int32_t id = 0; id < ids; ++id) {
    const TokenHistory::Entry found = history.find(id);
    ASSERT_EQ(found.in_prompt, std::count(tokens.begin(), middle, id)) << id;
    ASSERT_EQ(found.in_output, std::count(middle, tokens.end(), id)) << id;
  }
  int64_t total = 0;
  for (const TokenHistory::Entry& entry : history.table()) total += entry.in_prompt + entry.in_output;
  ASSERT_EQ(total, history.length());
}

TEST(TokenHistory, CountsPromptAndOutputApart) {
  TokenHistory history;
  EXPECT_EQ(history.find(3).in_prompt, 0);
  history.add_prompt(std::vector<int32_t>{3, 1, 3});
  history.add(1);
  history.add(7);
  history.add(1);
  expect_counts(history, {3, 1, 3, 1, 7, 1}, 3, 10);
  EXPECT_EQ(history.generated(), 3);
  history.remove_last();
  expect_counts(history, {3, 1, 3, 1, 7}, 3, 10);
}

TEST(TokenHistory, CutBackIsAsIfBuiltAnew) {
  RandomFloats random(1);
  for (int round = 0; round < 20; ++round) {
    const auto ids = static_cast<int32_t>(1 + random.below(400));
    std::vector<int32_t> tokens;
    TokenHistory history;
    int64_t prompt = random.below(100);
    for (int64_t i = 0; i < prompt; ++i) tokens.push_back(static_cast<int32_t>(random.below(ids)));
    history.add_prompt(tokens);
    for (int step = 0; step < 30; ++step) {
      for (int64_t n = random.below(40); n > 0; --n) {
        tokens.push_back(static_cast<int32_t>(random.below(ids)));
        history.add(tokens.back());
      }
      // Mostly within the output, sometimes into the prompt.
      const int64_t least = random.below(8) == 0 ? 0 : prompt;
      const int64_t kept = least + random.below(static_cast<int64_t>(tokens.size()) - least + 1);
      history.truncate(kept);
      tokens.resize(static_cast<size_t>(kept));
      prompt = std::min(prompt, kept);
      expect_counts(history, tokens, prompt, ids);
      TokenHistory anew;
      anew.add_prompt(std::span(tokens).first(static_cast<size_t>(prompt)));
      for (size_t i = static_cast<size_t>(prompt); i < tokens.size(); ++i) anew.add(tokens[i]);
      ASSERT_TRUE(history == anew);
      if (history.generated() == 0 && random.below(2) == 0) {
        history.add_prompt(std::vector<int32_t>{ids - 1});
        tokens.push_back(ids - 1);
        ++prompt;
      }
    }
  }
}

TEST(TokenHistory, HoldsManyIds) {
  TokenHistory history;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 20000; ++i) prompt.push_back(i * 8);
  history.add_prompt(prompt);
  for (int32_t id = 0; id < 160000; ++id) ASSERT_EQ(history.find(id).in_prompt, id % 8 == 0 ? 1 : 0);
  EXPECT_LE(history.table().size(), 65536u);
}

}  // namespace
}  // namespace weir
