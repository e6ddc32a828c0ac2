#include "text/kimi_parser.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "base/error.h"
#include "formats/json.h"
#include "text/kimi_parser_stream.h"

namespace weir {
namespace {

namespace json = boost::json;

// A piece of output: a marker, or text.
struct Piece {
  std::optional<KimiMarker> marker;
  std::string text;
};

Piece piece(std::string text, bool markup) {
  if (!markup) return {std::nullopt, std::move(text)};
  if (text == "<|open|>") return {KimiMarker::kOpen, ""};
  if (text == "<|close|>") return {KimiMarker::kClose, ""};
  if (text == "<|sep|>") return {KimiMarker::kSep, ""};
  return {KimiMarker::kEnd, ""};
}

std::vector<ChatEvent> parse(KimiParser& parser, const std::vector<Piece>& pieces) {
  std::vector<ChatEvent> all;
  const auto take = [&](std::vector<ChatEvent>& events) {
    all.insert(all.end(), events.begin(), events.end());
    events.clear();
  };
  std::vector<ChatEvent> events;
  for (const Piece& now : pieces) {
    if (now.marker) {
      parser.marker(*now.marker, events);
    } else {
      parser.text(now.text, events);
    }
    take(events);
  }
  parser.finish(events);
  take(events);
  return all;
}

// Events put together, as a client does.
ParsedMessage assemble(const std::vector<ChatEvent>& events) {
  ParsedMessage out;
  std::vector<ParsedToolCall> calls;
  for (const ChatEvent& event : events) {
    switch (event.kind) {
      case ChatEvent::Kind::kReasoning:
        out.reasoning += event.text;
        break;
      case ChatEvent::Kind::kContent:
        out.content += event.text;
        break;
      case ChatEvent::Kind::kToolCallStart:
        EXPECT_EQ(static_cast<size_t>(event.index), calls.size());
        calls.push_back({event.id, event.name, ""});
        break;
      case ChatEvent::Kind::kToolCallArguments:
        calls.at(event.index).arguments += event.text;
        break;
      case ChatEvent::Kind::kToolCallEnd:
        out.tool_calls.push_back(calls.at(event.index));
        break;
      case ChatEvent::Kind::kEnd:
        EXPECT_TRUE(out.finish_reason.empty());
        out.finish_reason = event.text;
        break;
    }
  }
  return out;
}

std::string shown(const ParsedMessage& message) {
  std::string out = message.finish_reason + "\nreasoning: " + message.reasoning + "\ncontent: " + message.content;
  for (const ParsedToolCall& call : message.tool_calls) out += "\n" + call.id + " " + call.name + call.arguments;
  return out;
}

std::string shown_json(const json::value& parsed) {
  ParsedMessage out;
  const auto text = [](const json::value& value) {
    return value.is_null() ? std::string() : std::string(value.as_string());
  };
  out.reasoning = text(parsed.at("reasoning"));
  out.content = text(parsed.at("content"));
  out.finish_reason = text(parsed.at("finish_reason"));
  for (const json::value& call : parsed.at("tool_calls").as_array()) {
    out.tool_calls.push_back(
        {"call_" + std::to_string(out.tool_calls.size()), text(call.at("name")), text(call.at("arguments"))});
  }
  return shown(out);
}

KimiParser::Start start_of(const json::value& one) {
  return one.at("start").as_string() == "think" ? KimiParser::Start::kThink : KimiParser::Start::kResponse;
}

std::vector<Piece> pieces_of(const json::value& one) {
  std::vector<Piece> out;
  for (const json::value& segment : one.at("segments").as_array()) {
    out.push_back(piece(std::string(segment.at(0).as_string()), segment.at(1).as_int64() == 1));
  }
  return out;
}

const json::array& cases() {
  static const json::value file = read_json_file(WEIR_FIXTURES "/kimi_k3/text/chat_k3.json");
  return file.at("parse").as_array();
}

// The one case in which the stream can't be the answer: see KimiParser.
bool repeats_an_argument(const json::value& one) { return one.at("name").as_string() == "repeated argument key"; }

void expect_parsed(const json::value& one, const std::vector<Piece>& pieces) {
  KimiParser parser(start_of(one));
  const std::vector<ChatEvent> events = parse(parser, pieces);
  EXPECT_EQ(shown(parser.message()), shown_json(one.at("parsed"))) << one.at("name");
  if (!repeats_an_argument(one)) {
    EXPECT_EQ(shown(assemble(events)), shown(parser.message())) << one.at("name");
  }
}

TEST(KimiParser, ParsesTheCasesWhole) {
  EXPECT_EQ(cases().size(), 25u);
  for (const json::value& one : cases()) expect_parsed(one, pieces_of(one));
}

TEST(KimiParser, ParsesTheCasesCutAtEveryPlace) {
  for (const json::value& one : cases()) {
    const std::vector<Piece> pieces = pieces_of(one);
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (size_t at = 1; at < pieces[i].text.size(); ++at) {
        std::vector<Piece> cut = pieces;
        cut[i].text.resize(at);
        cut.insert(cut.begin() + static_cast<std::ptrdiff_t>(i) + 1, {std::nullopt, pieces[i].text.substr(at)});
        expect_parsed(one, cut);
      }
    }
  }
}

TEST(KimiParser, ParsesTheCasesByteByByte) {
  for (const json::value& one : cases()) {
    std::vector<Piece> bytes;
    for (const Piece& now : pieces_of(one)) {
      if (now.marker) bytes.push_back(now);
      for (const char c : now.text) bytes.push_back({std::nullopt, std::string(1, c)});
    }
    expect_parsed(one, bytes);
  }
}

TEST(KimiParser, ParsesTheCasesFromTokenIds) {
  const auto tokenizer = Tokenizer::from_folder(WEIR_FIXTURES "/kimi_k3/text");
  for (const json::value& one : cases()) {
    KimiStream stream(tokenizer, start_of(one));
    std::vector<ChatEvent> events;
    for (const int32_t id : json::value_to<std::vector<int32_t>>(one.at("ids"))) stream.push(id, events);
    stream.finish(events);
    EXPECT_EQ(shown(stream.parser().message()), shown_json(one.at("parsed"))) << one.at("name");
    if (!repeats_an_argument(one)) {
      EXPECT_EQ(shown(assemble(events)), shown_json(one.at("parsed")));
    }
  }
}

TEST(KimiParser, StreamsARepeatedArgumentTwice) {
  for (const json::value& one : cases()) {
    if (!repeats_an_argument(one)) continue;
    KimiParser parser(start_of(one));
    EXPECT_EQ(assemble(parse(parser, pieces_of(one))).tool_calls.at(0).arguments, R"({"k": 1, "j": 2, "k": 3})");
    EXPECT_EQ(parser.message().tool_calls.at(0).arguments, R"({"k": 3, "j": 2})");
  }
}

// "!" before a marker's word.
std::vector<Piece> script(const std::vector<std::string>& parts) {
  std::vector<Piece> out;
  for (const std::string& part : parts) {
    if (part == "!open") {
      out.push_back({KimiMarker::kOpen, ""});
    } else if (part == "!close") {
      out.push_back({KimiMarker::kClose, ""});
    } else if (part == "!sep") {
      out.push_back({KimiMarker::kSep, ""});
    } else if (part == "!end") {
      out.push_back({KimiMarker::kEnd, ""});
    } else {
      out.push_back({std::nullopt, part});
    }
  }
  return out;
}

std::string parsed(const std::vector<std::string>& parts, KimiParser::Start start = KimiParser::Start::kResponse) {
  KimiParser parser(start);
  const std::vector<ChatEvent> events = parse(parser, script(parts));
  EXPECT_EQ(shown(assemble(events)), shown(parser.message()));
  std::string out = shown(parser.message());
  for (char& c : out) c = c == '\n' ? '|' : c;
  return out;
}

TEST(KimiParser, TellsTheNameAtOnceAndStringsAsTheyGrow) {
  KimiParser parser(KimiParser::Start::kResponse);
  std::vector<ChatEvent> events;
  const auto feed = [&](const std::vector<std::string>& parts) {
    events.clear();
    for (const Piece& now : script(parts)) {
      if (now.marker) {
        parser.marker(*now.marker, events);
      } else {
        parser.text(now.text, events);
      }
    }
  };
  feed({"!close", "response", "!sep", "!open", "tools", "!sep", "!open", "call tool=\"f\" index=\"1\"", "!sep"});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, ChatEvent::Kind::kToolCallStart);
  EXPECT_EQ(events[0].name, "f");
  EXPECT_EQ(events[0].id, "call_0");
  feed({"!open", "argument key=\"k\" type=\"string\"", "!sep"});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "{\"k\": \"");
  feed({"a\"\n"});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "a\\\"\\n");
  feed({"!close", "argument", "!sep", "!open", "argument key=\"n\" type=\"number\"", "!sep", "1"});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "\", \"n\": ");
  feed({"2", "!close", "argument", "!sep"});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "12");
  feed({"!close", "call", "!sep"});
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "}");
  EXPECT_EQ(events[1].kind, ChatEvent::Kind::kToolCallEnd);
}

TEST(KimiParser, QuotesValuesThatAreNotJson) {
  const auto call = [](const std::string& type, const std::string& value) {
    return parsed({"!open", "tools", "!sep", "!open", "call tool=\"f\"", "!sep", "!open",
                   "argument key=\"k\" type=\"" + type + "\"", "!sep", value, "!close", "argument", "!sep", "!end"});
  };
  EXPECT_EQ(call("number", "NaN"), R"(tool_calls|reasoning: |content: |call_0 f{"k": "NaN"})");
  EXPECT_EQ(call("object", "{\"a\": }"), R"(tool_calls|reasoning: |content: |call_0 f{"k": "{\"a\": }"})");
  EXPECT_EQ(call("boolean", ""), R"(tool_calls|reasoning: |content: |call_0 f{"k": ""})");
  EXPECT_EQ(call("number", " 01"), R"(tool_calls|reasoning: |content: |call_0 f{"k": " 01"})");
  EXPECT_EQ(call("array", "[1 , \"\\u00e9\"]"), R"(tool_calls|reasoning: |content: |call_0 f{"k": [1 , "\u00e9"]})");
}

TEST(KimiParser, MakesSenseOfMalformedOutput) {
  EXPECT_EQ(parsed({"!open", "call tool=\"f\"", "!sep", "x", "!end"}),
            "stop|reasoning: |content: <|open|>call tool=\"f\"<|sep|>x");
  EXPECT_EQ(parsed({"a", "!close", "response", "!sep", "!open", "call tool=\"f\"", "!sep", "!end"}),
            "tool_calls|reasoning: |content: a|call_0 f{}");
  EXPECT_EQ(parsed({"a", "!sep", "b", "!end"}), "stop|reasoning: |content: a<|sep|>b");
  EXPECT_EQ(parsed({"a", "!open", "!open", "!sep", "b", "!end"}),
            "stop|reasoning: |content: a<|open|><|open|><|sep|>b");
  EXPECT_EQ(parsed({"a", "!close", "mess"}), "length|reasoning: |content: a");
  EXPECT_EQ(parsed({"a", "!close", "message", "!sep", "rest"}), "stop|reasoning: |content: a");
  EXPECT_EQ(parsed({"a", "!open", "call tool=f", "!sep", "b", "!end"}),
            "stop|reasoning: |content: a<|open|>call tool=f<|sep|>b");
  EXPECT_EQ(parsed({"t", "!end"}, KimiParser::Start::kThink), "stop|reasoning: t|content: ");
  EXPECT_EQ(parsed({"t",
                    "!open",
                    "tools",
                    "!sep",
                    "!open",
                    "call tool=\"f\"",
                    "!sep",
                    "!open",
                    "argument key=\"a\"",
                    "!sep",
                    "1",
                    "!open",
                    "argument key=\"b\"",
                    "!sep",
                    "2",
                    "!open",
                    "call tool=\"g\"",
                    "!sep",
                    "!open",
                    "response",
                    "!sep",
                    "x",
                    "!end"},
                   KimiParser::Start::kThink),
            R"(tool_calls|reasoning: t|content: x|call_0 f{"a": "1", "b": "2"}|call_1 g{})");
  EXPECT_EQ(
      parsed({"!open", "tools", "!sep", "!open", "call tool=\"f\"", "!sep", "!open", "json type=\"object\"", "!sep",
              "{\"a\"", ": 1}", "!close", "json", "!sep", "!open", "argument key=\"b\"", "!sep", "2", "!end"}),
      R"(tool_calls|reasoning: |content: |call_0 f{"a": 1})");
}

TEST(KimiParser, SurvivesWhateverIsEmitted) {
  std::mt19937 random(7);
  const std::vector<std::string> parts = {"!open",
                                          "!close",
                                          "!sep",
                                          "!open",
                                          "!close",
                                          "!sep",
                                          "think",
                                          "response",
                                          "tools",
                                          "call tool=\"f\" index=\"1\"",
                                          "argument key=\"k\" type=\"number\"",
                                          "argument key=\"\"",
                                          "json type=\"object\"",
                                          "message",
                                          "call",
                                          " ",
                                          "1",
                                          "\"",
                                          "\n",
                                          "{}",
                                          "x=\"",
                                          "\xe4\xbd\xa0",
                                          "!end"};
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> output;
    const size_t length = random() % 40;
    for (size_t i = 0; i < length; ++i) {
      const size_t pick = random() % parts.size();
      if (parts[pick] != "!end" || random() % 8 == 0) output.push_back(parts[pick]);
    }
    KimiParser whole(round % 2 ? KimiParser::Start::kThink : KimiParser::Start::kResponse);
    KimiParser split = whole;
    const ParsedMessage message = assemble(parse(whole, script(output)));
    EXPECT_EQ(message.reasoning, whole.message().reasoning);
    EXPECT_EQ(message.content, whole.message().content);
    ASSERT_EQ(message.tool_calls.size(), whole.message().tool_calls.size());
    std::vector<Piece> bytes;
    for (const Piece& now : script(output)) {
      if (now.marker) bytes.push_back(now);
      for (const char c : now.text) bytes.push_back({std::nullopt, std::string(1, c)});
    }
    parse(split, bytes);
    ASSERT_EQ(shown(split.message()), shown(whole.message()));
  }
}

}  // namespace
}  // namespace weir
