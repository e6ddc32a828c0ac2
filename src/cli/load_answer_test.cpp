// Event streams cut anywhere, and the times and counts of the answers in them.
#include "cli/load_answer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace weir::cli {
namespace {

std::vector<std::string> events_of(const std::vector<std::string>& pieces) {
  std::vector<std::string> out;
  SseParser parser([&](std::string_view data) { out.emplace_back(data); });
  for (const std::string& piece : pieces) parser.feed(piece);
  return out;
}

TEST(SseParser, ReadsTheSameHoweverTheBytesAreCut) {
  const std::string stream =
      "\xef\xbb\xbf: a comment\r\ndata: one\r\n\r\nevent: delta\ndata:two\ndata:  three\nid: 7\n\nretry: 5\n\n"
      "data\n\ndata: \xe2\x82\xac\r\rdata: last\n\n";
  const std::vector<std::string> expected = {"one", "two\n three", "", "\xe2\x82\xac", "last"};
  EXPECT_EQ(events_of({stream}), expected);
  for (size_t a = 0; a <= stream.size(); ++a) {
    EXPECT_EQ(events_of({stream.substr(0, a), stream.substr(a)}), expected) << a;
    for (size_t b = a; b <= stream.size(); b += 3) {
      EXPECT_EQ(events_of({stream.substr(0, a), stream.substr(a, b - a), stream.substr(b)}), expected) << a << " " << b;
    }
  }
  std::vector<std::string> bytes;
  for (const char c : stream) bytes.emplace_back(1, c);
  EXPECT_EQ(events_of(bytes), expected);
}

TEST(SseParser, KnowsWhetherAnEventIsIncomplete) {
  SseParser parser([](std::string_view) {});
  EXPECT_FALSE(parser.inside_event());
  parser.feed("da");
  EXPECT_TRUE(parser.inside_event());
  parser.feed("ta: x\n");
  EXPECT_TRUE(parser.inside_event());
  parser.feed("\n");
  EXPECT_FALSE(parser.inside_event());
}

TEST(SseParser, RefusesWhatIsNoEventStream) {
  EXPECT_THROW(events_of({"<html>\n"}), Error);
  EXPECT_THROW(events_of({"{\"error\": 5}\n"}), Error);
  SseParser parser([](std::string_view) {});
  parser.feed("data: ");
  const std::string megabyte(1 << 20, 'x');
  EXPECT_THROW(
      {
        for (int i = 0; i < 17; ++i) parser.feed(megabyte);
      },
      Error);
}

using Clock = LoadAnswer::Clock;
using std::chrono::milliseconds;

const Clock::time_point kDue{};

std::string text_event(std::string_view text) {
  return concat("data: {\"choices\":[{\"delta\":{\"content\":\"", text, "\"}}]}\n\n");
}

TEST(LoadAnswer, TimesOnlyChunksThatHaveText) {
  LoadAnswer answer(kDue, true);
  EXPECT_TRUE(answer.feed("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\n",
                          kDue + milliseconds(5)));
  answer.feed(text_event("a"), kDue + milliseconds(20));
  answer.feed("data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"b\"}}]}\n\n", kDue + milliseconds(30));
  answer.feed("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n", kDue + milliseconds(45));
  answer.feed(text_event("c") + text_event("d"), kDue + milliseconds(50));
  answer.feed("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", kDue + milliseconds(70));
  answer.feed("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8}}\n\ndata: [DONE]\n\n",
              kDue + milliseconds(90));
  const LoadRecord record = answer.finish();
  EXPECT_EQ(record.failure, LoadFailure::kNone);
  EXPECT_DOUBLE_EQ(record.ttft, 20);
  EXPECT_DOUBLE_EQ(record.e2e, 50);
  EXPECT_EQ(record.gaps, (std::vector<double>{10, 15, 5, 0}));
  EXPECT_EQ(record.input_tokens, 9);
  EXPECT_EQ(record.output_tokens, 8);
  EXPECT_FALSE(record.cached_tokens.has_value());
  EXPECT_EQ(answer.text(), "acd");
}

TEST(LoadAnswer, ReadsCachedTokensUnderAnyName) {
  const auto cached = [](std::string_view fields) {
    LoadAnswer answer(kDue, false);
    answer.feed(concat(text_event("a"), "data: {\"choices\":[],", fields, "}\n\ndata: [DONE]\n\n"), kDue);
    return answer.finish().cached_tokens;
  };
  const std::string usage = "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1";
  EXPECT_EQ(cached(usage + ",\"prompt_tokens_details\":{\"cached_tokens\":4}},\"timings\":{\"cached_n\":5}"), 4);
  EXPECT_EQ(cached(usage + ",\"prompt_tokens_details\":null},\"timings\":{\"cached_n\":5}"), 5);
  EXPECT_EQ(cached(usage + "},\"timings\":{\"cache_n\":6,\"prompt_n\":3}"), 6);
  EXPECT_EQ(cached(usage + "},\"timings\":{\"prompt_n\":2}"), 7);
  EXPECT_EQ(cached(usage + "},\"timings\":{\"prompt_n\":20}"), std::nullopt);
  EXPECT_EQ(cached(usage + "}"), std::nullopt);
}

TEST(LoadAnswer, WithoutUsageChunksAreCounted) {
  LoadAnswer answer(kDue, false);
  answer.feed(text_event("a") + text_event("b") + "data: [DONE]\n\n", kDue);
  const LoadRecord record = answer.finish();
  EXPECT_FALSE(record.counted);
  EXPECT_EQ(record.output_tokens, 2);
}

TEST(LoadAnswer, SaysWhatIsWrongWithAnAnswer) {
  const auto failure = [](std::string_view stream) {
    LoadAnswer answer(kDue, false);
    answer.feed(stream, kDue);
    return answer.finish().failure;
  };
  const std::string text = text_event("a");
  EXPECT_EQ(failure(text + "data: [DONE]\n\n"), LoadFailure::kNone);
  EXPECT_EQ(failure(text), LoadFailure::kClosed);
  EXPECT_EQ(failure(text + "data: [DONE]\n\ndata: more"), LoadFailure::kClosed);
  EXPECT_EQ(failure("data: [DONE]\n\n"), LoadFailure::kEmpty);
  EXPECT_EQ(failure(text + "data: {\"error\":\"out of pages\"}\n\ndata: [DONE]\n\n"), LoadFailure::kErrorEvent);
  EXPECT_EQ(failure(text + "data: {\n\n"), LoadFailure::kMalformed);
  EXPECT_EQ(failure(text + "data: [1]\n\n"), LoadFailure::kMalformed);
  // Of another shape than ours, and nothing that we read.
  EXPECT_EQ(failure(text + "data: {\"choices\":[7],\"usage\":{\"prompt_tokens\":\"x\"}}\n\ndata: [DONE]\n\n"),
            LoadFailure::kNone);
}

TEST(ErrorMessage, IsFoundInEveryShape) {
  EXPECT_EQ(error_message(R"({"error":{"message":"no","code":5}})"), "no");
  EXPECT_EQ(error_message(R"({"message":"no"})"), "no");
  EXPECT_EQ(error_message(R"({"error":"no"})"), "no");
  EXPECT_EQ(error_message("plain\ntext"), "plain\\x0atext");
  EXPECT_EQ(error_message(""), "no message");
}

}  // namespace
}  // namespace weir::cli
