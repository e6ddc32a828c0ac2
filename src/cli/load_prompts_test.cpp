#include "cli/load_prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/error.h"
#include "cli/load_request.h"
#include "formats/json.h"
#include "tests/support/temporary_folder.h"

namespace weir::cli {
namespace {

std::unique_ptr<PromptSource> prompts(const std::string& spec, int64_t requests = 0, uint64_t seed = 1) {
  return make_prompts(parse_prompts(spec), {common_words(), 1}, requests, 128, seed);
}

std::vector<std::string> words(const Conversation& conversation) {
  std::vector<std::string> out(1);
  for (const char c : conversation.messages.at(0).content) {
    if (c == ' ') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

size_t shared(const PromptSource& source, int64_t a, int64_t b) {
  const auto x = words(source.conversation(a)), y = words(source.conversation(b));
  return static_cast<size_t>(std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin());
}

TEST(Prompts, WordsAreDistinctAndPlain) {
  const std::set<std::string> distinct(common_words().begin(), common_words().end());
  EXPECT_EQ(distinct.size(), common_words().size());
  EXPECT_GE(distinct.size(), 200u);
}

TEST(Prompts, RandomOnesShareNothing) {
  const auto source = prompts("random:100,7");
  EXPECT_EQ(words(source->conversation(0)).size(), 100u);
  EXPECT_EQ(source->conversation(0).max_tokens, 7);
  for (int64_t i = 1; i < 200; ++i) EXPECT_EQ(shared(*source, 0, i), 0u) << i;
}

TEST(Prompts, DependOnSeedAndNumberAlone) {
  const auto a = prompts("random:50"), b = prompts("random:50"), c = prompts("random:50", 0, 2);
  EXPECT_EQ(words(a->conversation(9)), words(b->conversation(9)));
  EXPECT_NE(words(a->conversation(9)), words(c->conversation(9)));
}

TEST(Prompts, LengthFollowsTheTokensOfAWord) {
  const auto source = make_prompts(parse_prompts("random:100"), {common_words(), 2.5}, 0, 128, 1);
  EXPECT_EQ(words(source->conversation(3)).size(), 40u);
  EXPECT_EQ(words(make_prompts(parse_prompts("random:1"), {common_words(), 8}, 0, 128, 1)->conversation(0)).size(), 1u);
}

TEST(Prompts, RepeatedOnesComeInRounds) {
  const auto source = prompts("repeat:3,20", 12);  // four prompts
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(shared(*source, i, i + 4), 20u);
    EXPECT_EQ(shared(*source, i, i + 8), 20u);
    EXPECT_EQ(shared(*source, i, (i + 1) % 4), 0u);
    EXPECT_EQ(shared(*source, i, i + 12), 0u);  // more than were announced: new ones
  }
}

TEST(Prompts, SharedOnesBeginAlike) {
  const auto source = prompts("shared:60,10,5");
  EXPECT_EQ(words(source->conversation(0)).size(), 70u);
  for (int64_t i = 1; i < 100; ++i) EXPECT_EQ(shared(*source, 0, i), 60u) << i;
}

TEST(Prompts, PartialOnesShareAPartOfAnEarlierOne) {
  const auto source = prompts("partial:30,80,3", 6);
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(words(source->conversation(i)).size(), 80u);
    EXPECT_EQ(shared(*source, i, i + 2), 30u);
    EXPECT_EQ(shared(*source, i + 2, i + 4), 30u);
  }
  EXPECT_EQ(shared(*source, 0, 1), 0u);
}

TEST(Prompts, ConversationsGrow) {
  Conversation talk = prompts("turns:3,10")->conversation(4);
  EXPECT_EQ(talk.messages.size(), 1u);
  EXPECT_TRUE(next_turn(talk, "yes"));
  EXPECT_TRUE(next_turn(talk, "no"));
  EXPECT_FALSE(next_turn(talk, "well"));
  ASSERT_EQ(talk.messages.size(), 5u);
  EXPECT_EQ(talk.messages[3].content, "no");
  EXPECT_EQ(talk.messages[3].role, "assistant");
  EXPECT_NE(talk.messages[0].content, talk.messages[2].content);
}

TEST(Prompts, RefuseWhatTheyDoNotKnow) {
  for (const char* bad : {"random", "random:", "random:0", "random:5,6,7", "random:x", "random:5,", "repeat",
                          "shared:5", "partial:5,5", "turns:0", "burst:7", "random:99999999999", ""}) {
    EXPECT_THROW(parse_prompts(bad), Error) << bad;
  }
}

class PromptFile : public testing::Test {
 protected:
  std::unique_ptr<PromptSource> read(const std::string& text) {
    const std::string path = (folder_.path() / "talk.jsonl").string();
    std::ofstream(path, std::ios::binary) << text;
    return make_prompts(parse_prompts(path), {}, 0, 128, 1);
  }
  test::TemporaryFolder folder_;
};

TEST_F(PromptFile, HoldsConversationsInThreeForms) {
  const auto source = read(
      "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"},"
      "{\"role\":\"assistant\",\"content\":\"a\"}]}\n\n"
      "{\"id\":\"x\",\"conversations\":[{\"from\":\"gpt\",\"value\":\"g\"},{\"from\":\"human\",\"value\":\"h\"}]}\n"
      "{\"conversations\":[{\"from\":\"gpt\",\"value\":\"nobody asks\"}]}\r\n"
      "{\"prompt\":\"p\",\"max_tokens\":9}");
  EXPECT_EQ(source->conversation(0).messages.size(), 2u);
  EXPECT_EQ(source->conversation(0).max_tokens, 128);
  EXPECT_EQ(source->conversation(1).messages.at(0).content, "h");
  EXPECT_EQ(source->conversation(2).messages.at(0).content, "p");
  EXPECT_EQ(source->conversation(2).max_tokens, 9);
  EXPECT_EQ(source->conversation(3).messages.size(), 2u);  // again from the start
}

TEST_F(PromptFile, ErrorsNameTheLine) {
  for (const auto& [text, part] : {std::pair("{\"prompt\":\"a\"}\n{\n", "talk.jsonl:2"),
                                   {"[1]", "talk.jsonl:1"},
                                   {"{\"prompt\":5}", "'prompt'"},
                                   {"{\"messages\":[5]}", "'messages'"},
                                   {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
                                   {"\n", "found none"}}) {
    try {
      read(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(make_prompts(parse_prompts("/no/such.jsonl"), {}, 0, 128, 1), Error);
}

TEST(LoadUrl, IsReadInEveryForm) {
  const auto form = [](std::string_view text) {
    const LoadUrl url = parse_load_url(text);
    return concat(url.host, " ", url.port, " ", url.base, " ", url.authority());
  };
  EXPECT_EQ(form("http://localhost"), "localhost 80  localhost");
  EXPECT_EQ(form("http://127.0.0.1:8080/"), "127.0.0.1 8080  127.0.0.1:8080");
  EXPECT_EQ(form("http://a.b:8000/v1"), "a.b 8000  a.b:8000");
  EXPECT_EQ(form("http://a.b/llm/v1/"), "a.b 80 /llm a.b");
  EXPECT_EQ(form("http://[::1]:9"), "::1 9  [::1]:9");
  for (const char* bad : {"https://a", "localhost:8000", "http://", "http://:80", "http://a:", "http://a:0",
                          "http://a:70000", "http://a:8x", "http://[::1", "http://[::1]x", "http://a b",
                          "http://a/\r\nX: y", "http://u@a", "http://a/?q"}) {
    EXPECT_THROW(parse_load_url(bad), Error) << bad;
  }
}

TEST(LoadBody, CarriesWhatFixesTheLength) {
  Conversation talk{.number = 5, .messages = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}}, .max_tokens = 9};
  LoadRequestOptions options{.model = "m", .chat = true, .temperature = 0.5, .seed = 10};
  const auto body = [&] { return parse_json(load_body(options, talk), "body").as_object(); };
  EXPECT_EQ(body().at("messages").as_array().size(), 3u);
  EXPECT_EQ(body().at("seed").as_int64(), 15);
  EXPECT_TRUE(body().at("ignore_eos").as_bool());
  options.chat = options.ignore_eos = false;
  options.temperature = 0;
  EXPECT_EQ(body().at("prompt").as_string(), "a\nb\nc");
  EXPECT_FALSE(body().contains("seed"));
  EXPECT_FALSE(body().contains("ignore_eos"));
}

}  // namespace
}  // namespace weir::cli
