// Long texts of every kind take time that grows little faster than their length, and come back as they were.
#include <chrono>

#include "text/tokenizer_testing.h"
#include "text/tokenizer_texts.h"

namespace weir {
namespace {

class HardText : public ::testing::TestWithParam<const char*> {};

// A quadratic step anywhere takes minutes here. The bound is loose, for busy machines and sanitizers.
TEST_P(HardText, IsEncodedInSeconds) {
  const auto tokenizer = testing::fixture_tokenizer(GetParam());
  for (const auto& [name, text] : testing::large_texts(200'000)) {
    SCOPED_TRACE(name);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<int32_t> ids = tokenizer->encode(text, SpecialTokens::kParse, false);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 30);
    if (std::string_view(GetParam()) != "unigram" && std::string_view(GetParam()) != "qwen2") {
      EXPECT_EQ(tokenizer->decode(ids, false), repaired_utf8(text));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, HardText,
                         ::testing::Values("gpt2", "qwen2", "llama3", "deepseek", "o200k", "kimi_tiktoken", "llama2",
                                           "gemma", "unigram"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace weir
