#include "text/think_splitter.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

using Start = ThinkSplitter::Start;

// "reasoning|content" of an answer that comes in pieces of `length` bytes; fails when the events say otherwise.
std::string split(std::string_view answer, Start start, size_t length) {
  ThinkSplitter splitter(start);
  ParsedMessage message;
  std::vector<ChatEvent> events;
  for (size_t at = 0; at < answer.size(); at += length) splitter.push(answer.substr(at, length), message, events);
  splitter.finish(message, events);
  std::string reasoning, content;
  for (const ChatEvent& event : events) {
    EXPECT_FALSE(event.text.empty());
    (event.kind == ChatEvent::Kind::kReasoning ? reasoning : content) += event.text;
    if (event.kind == ChatEvent::Kind::kReasoning) {
      EXPECT_EQ(content, "") << "reasoning after content";
    }
  }
  EXPECT_EQ(reasoning, message.reasoning);
  EXPECT_EQ(content, message.content);
  return reasoning + "|" + content;
}

void expect_split(std::string_view answer, Start start, std::string_view expected) {
  for (const size_t length : {1, 2, 3, 5, 1000}) EXPECT_EQ(split(answer, start, length), expected) << answer << length;
}

TEST(ThinkSplitter, TakesTheReasoningInFrontApart) {
  expect_split("<think>\nIs it?\n\nYes.\n</think>\n\nIt is. <b>", Start::kAnswer, "Is it?\n\nYes.|It is. <b>");
  expect_split(" \n<think>a</think>b", Start::kAnswer, "a|b");
  expect_split("a < b </thin\n </thinking </think>c\n", Start::kReasoning, "a < b </thin\n </thinking|c\n");
  expect_split("<think>\n\n</think>\n\nHi", Start::kAnswer, "|Hi");
}

TEST(ThinkSplitter, LeavesOtherAnswersAsTheyAre) {
  expect_split("  plain \n", Start::kAnswer, "|  plain \n");
  expect_split("say <think>x</think>", Start::kAnswer, "|say <think>x</think>");
  expect_split("<thin air", Start::kAnswer, "|<thin air");
  expect_split("<thin", Start::kAnswer, "|<thin");
  expect_split("<think>a</think><think>b</think>", Start::kAnswer, "a|<think>b</think>");
  expect_split("", Start::kAnswer, "|");
}

TEST(ThinkSplitter, TakesACutAnswerForReasoning) {
  expect_split("<think>so far </th", Start::kAnswer, "so far </th|");
  expect_split("so far\n", Start::kReasoning, "so far\n|");
  expect_split("<think>\n", Start::kAnswer, "|");
}

TEST(ThinkSplitter, StreamsWhatIsKnown) {
  ThinkSplitter splitter(Start::kAnswer);
  ParsedMessage message;
  std::vector<ChatEvent> events;
  splitter.push("<think>one two", message, events);
  EXPECT_EQ(message.reasoning, "one two");
  splitter.push(" three</think>four", message, events);
  EXPECT_EQ(message.content, "four");
}

TEST(ThinkSplitter, SeesAPromptThatOpensTheReasoning) {
  EXPECT_TRUE(ends_in_think("<|assistant|>\n<think>\n"));
  EXPECT_FALSE(ends_in_think("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(ends_in_think(""));
}

}  // namespace
}  // namespace weir
