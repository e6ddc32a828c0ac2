// Masks against trying every token, and walks through the vocabularies of the fixtures.
#include "text/json_token_masks.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "base/error.h"
#include "text/tokenizer_parts.h"

namespace weir {
namespace {

constexpr const char* kTokenizers[] = {"tokenizers/llama3",
                                       "tokenizers/o200k",
                                       "tokenizers/gemma",
                                       "tokenizers/qwen2",
                                       "tokenizers/gpt2",
                                       "tokenizers/llama2",
                                       "tokenizers/llama2_metaspace",
                                       "tokenizers/deepseek",
                                       "kimi_k3/text",
                                       "kimi_k3/k3-tiny"};

std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& name) {
  return Tokenizer::from_folder(std::string(WEIR_FIXTURES) + "/" + name);
}

bool bit(std::span<const uint32_t> mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

bool push_all(JsonAutomaton& at, std::string_view bytes) {
  for (const char c : bytes) {
    if (!at.push(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

class JsonTokenMasksTest : public testing::TestWithParam<const char*> {
 protected:
  JsonTokenMasksTest() : tokenizer_(tokenizer_of(GetParam())), masks_(*tokenizer_, tokenizer_->vocab_size() + 5) {
    for (int32_t id = 0; id < masks_.vocab(); ++id) {
      plain_.push_back(id < tokenizer_->vocab_size() && !is_marker(id) && !masks_.bytes(id).empty());
    }
  }
  bool is_marker(int32_t id) const {
    const std::string_view text = tokenizer_->token_bytes(id);
    const auto added = tokenizer_->parts().added_ids.find(text);
    return tokenizer_->is_special(id) || (added != tokenizer_->parts().added_ids.end() && added->second == id &&
                                          text.find_first_not_of(" \t\r\n") != std::string_view::npos);
  }

  void expect_as_tried(const JsonAutomaton& at, std::span<const uint32_t> mask) {
    for (int32_t id = 0; id < masks_.vocab(); ++id) {
      JsonAutomaton tried = at;
      const bool fits = plain_[static_cast<size_t>(id)] && push_all(tried, masks_.bytes(id));
      ASSERT_EQ(bit(mask, id), fits) << "mode " << static_cast<int>(at.mode()) << ", depth " << at.depth() << ", token "
                                     << masks_.bytes(id);
    }
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  JsonTokenMasks masks_;
  std::vector<bool> plain_;
};

// A walk prefers now one kind of token, now another, so that it gets deep and comes back.
TEST_P(JsonTokenMasksTest, WalksEndInObjectsAndMasksAreWhatTryingSays) {
  std::mt19937 random(7);
  std::vector<uint32_t> mask(masks_.words());
  int finished = 0, compared = 0;
  for (int walk = 0; walk < 300; ++walk) {
    JsonAutomaton at;
    std::string text;
    std::vector<int32_t> ids;
    const std::string_view liked = std::array<std::string_view, 4>{"\"}]", "[{", "0123456789.e", " \n"}[random() % 4];
    for (int step = 0; step < 600 && !at.done(); ++step) {
      at.begin_token();
      masks_.json(at, mask);
      if (walk % 10 == 0 || random() % 50 == 0) {
        expect_as_tried(at, mask);
        if (HasFatalFailure()) return;
        ++compared;
      }
      std::vector<int32_t> some, preferred;
      for (int32_t id = 0; id < masks_.vocab(); ++id) {
        if (!bit(mask, id)) continue;
        some.push_back(id);
        const std::string_view wanted = step < 200 ? liked : "\"}]";
        if (masks_.bytes(id).find_first_of(wanted) != std::string_view::npos) preferred.push_back(id);
      }
      ASSERT_FALSE(some.empty()) << text;
      const std::vector<int32_t>& from = preferred.empty() || random() % 4 == 0 ? some : preferred;
      ids.push_back(from[random() % from.size()]);
      text += masks_.bytes(ids.back());
      ASSERT_TRUE(push_all(at, masks_.bytes(ids.back()))) << text;
    }
    if (!at.done()) continue;
    ++finished;
    for (const std::string& whole : {text, tokenizer_->decode(ids, true)}) {
      boost::system::error_code error;
      const boost::json::value value = boost::json::parse(whole, error, {}, {.max_depth = 64});
      ASSERT_FALSE(error) << whole << ": " << error.message();
      EXPECT_TRUE(value.is_object());
    }
  }
  EXPECT_GT(finished, 150);
  EXPECT_GT(compared, 200);
}

TEST_P(JsonTokenMasksTest, NearTheDepthLimitToo) {
  std::vector<uint32_t> mask(masks_.words());
  for (const bool object : {false, true}) {
    for (int depth = 1; depth <= 64; ++depth) {
      for (const auto mode :
           {JsonAutomaton::Mode::kValue, JsonAutomaton::Mode::kAfterValue, JsonAutomaton::Mode::kString}) {
        const JsonAutomaton at =
            JsonAutomaton::probe(mode, object, false, depth % 2 == 0 && mode != JsonAutomaton::Mode::kString, depth);
        masks_.json(at, mask);
        expect_as_tried(at, mask);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(JsonTokenMasksTest, ReasoningEndsWithWhatMayBecomeAnObject) {
  std::vector<uint32_t> mask(masks_.words());
  const std::string tag = "</think>";
  for (size_t matched = 0; matched < tag.size(); ++matched) {
    masks_.reasoning(static_cast<int>(matched), mask);
    for (int32_t id = 0; id < masks_.vocab(); ++id) {
      const std::string text = tag.substr(0, matched) + std::string(masks_.bytes(id));
      const size_t close = text.find(tag);
      JsonAutomaton rest;
      const bool fits = close == std::string::npos || push_all(rest, std::string_view(text).substr(close + tag.size()));
      ASSERT_EQ(bit(mask, id), fits) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, JsonTokenMasksTest, testing::ValuesIn(kTokenizers),
                         [](const testing::TestParamInfo<const char*>& param) {
                           std::string name = param.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST(JsonTokenMasksErrors, AVocabularyWithoutBytesIsRefused) {
  EXPECT_THROW(JsonTokenMasks(*tokenizer_of("tokenizers/unigram"), 700), Error);
}

}  // namespace
}  // namespace weir
