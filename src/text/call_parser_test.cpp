// Answers of each style of calls: what becomes of them, and that it is the same however they arrive.
#include "text/call_parser.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "formats/json.h"

namespace weir {
namespace {

namespace json = boost::json;

const json::array& tools() {
  static const json::value value = parse_json(R"([{"type": "function", "function": {"name": "weather", "parameters":
      {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
      "exact": {"type": "boolean"}, "tags": {"type": "array"}, "any": {}, "maybe": {"type": ["string", "null"]}}}}},
      {"type": "function", "function": {"name": "time"}}, {"bad": 1}])",
                                              "tools");
  return value.as_array();
}

// A template that has these signs.
const CallSyntax& syntax(const std::string& style) {
  static const std::map<std::string, std::string> kTemplates = {
      {"hermes", R"(<tool_call>{"name": ..., "arguments": ...}</tool_call>)"},
      {"qwen3-coder", "<tool_call>\n<function=f>\n<parameter=k>\n arguments"},
      {"glm", "<tool_call>name\n<arg_key>k</arg_key> arguments"},
      {"kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"},
      {"deepseek-v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"},
      {"deepseek-v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"},
      {"llama3", R"(role ipython {"name": f, "parameters": {}})"}};
  const CallSyntax* found = find_call_syntax(kTemplates.at(style));
  EXPECT_TRUE(found && found->name == style) << style;
  return *found;
}

struct Outcome {
  ParsedMessage message;
  std::vector<ChatEvent> events;
};

Outcome parse(const std::string& style, const std::vector<std::string_view>& pieces, bool complete = true) {
  Outcome out;
  CallParser parser(syntax(style), tools(), "c");
  for (const std::string_view piece : pieces) {
    std::vector<ChatEvent> events;  // each its own, as a stream has them
    parser.push(piece, out.message, events);
    out.events.insert(out.events.end(), events.begin(), events.end());
  }
  std::vector<ChatEvent> events;
  parser.finish(complete, out.message, events);
  out.events.insert(out.events.end(), events.begin(), events.end());
  return out;
}

std::string written(const ParsedMessage& message) {
  std::string out = message.content;
  for (const ParsedToolCall& call : message.tool_calls)
    out += "[" + call.id + " " + call.name + " " + call.arguments + "]";
  return out;
}

// What a client that follows the stream has in the end: calls that ended.
std::string streamed(const std::vector<ChatEvent>& events) {
  ParsedMessage message;
  std::vector<ParsedToolCall> calls;
  for (const ChatEvent& event : events) {
    const auto index = static_cast<size_t>(event.index);
    if (event.kind == ChatEvent::Kind::kContent) message.content += event.text;
    if (event.kind == ChatEvent::Kind::kToolCallStart) {
      EXPECT_EQ(index, calls.size());
      calls.push_back({.id = event.id, .name = event.name});
    }
    if (event.kind == ChatEvent::Kind::kToolCallArguments) calls.at(index).arguments += event.text;
    if (event.kind == ChatEvent::Kind::kToolCallEnd) message.tool_calls.push_back(calls.at(index));
  }
  return written(message);
}

// The answer whole, in single bytes and cut at random.
std::string outcome(const std::string& style, const std::string& answer, bool complete = true) {
  const Outcome whole = parse(style, {answer}, complete);
  const std::string result = written(whole.message);
  EXPECT_EQ(streamed(whole.events), result) << answer;
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string_view> pieces;
    for (std::string_view rest = answer; !rest.empty();) {
      const size_t length = round == 0 ? 1 : std::min<size_t>(rest.size(), 1 + random() % 12);
      pieces.push_back(rest.substr(0, length));
      rest.remove_prefix(length);
    }
    const Outcome cut = parse(style, pieces, complete);
    EXPECT_EQ(written(cut.message), result) << answer;
    EXPECT_EQ(streamed(cut.events), result) << answer;
  }
  return result;
}

TEST(CallParserTest, Hermes) {
  const auto is = [](const std::string& answer, bool complete = true) { return outcome("hermes", answer, complete); };
  EXPECT_EQ(is("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"A}<\\\"\"}}\n</tool_call>"),
            R"([c0 weather {"city": "A}<\""}])");
  EXPECT_EQ(is("I look.\n\n<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": "
               "\"weather\", \"parameters\": {\"days\": [1, {\"a\": 2}]}}\n</tool_call>\n"),
            R"(I look.[c0 time {}][c1 weather {"days": [1, {"a": 2}]}])");
  EXPECT_EQ(is("<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"time\"}</tool_call>"), R"([c0 time {"x": 1}])");
  EXPECT_EQ(is("<tool_call>{\"name\": \"time\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>"),
            R"([c0 time {"x": 1}])");
  EXPECT_EQ(is("<tool_call>{\"name\": \"time\"}</tool_call> and more"), R"(and more[c0 time {}])");
  EXPECT_EQ(is("<tool_call>{\"name\": \"time\", \"arguments\": {}, \"id\": 7}</tool_call>"), "[c0 time {}]");
  // Not closed, but followed by the next one, or by the end of the answer.
  EXPECT_EQ(is("<tool_call>{\"name\": \"time\", \"arguments\": {}}\n<tool_call>{\"name\": \"b\", \"arguments\": {}}"),
            "[c0 time {}][c1 b {}]");
  // Broken arguments are the caller's to see.
  EXPECT_EQ(is("<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": [1}</tool_call>"), R"([c0 time {"a": [1}])");
}

TEST(CallParserTest, LookalikesAreContent) {
  const auto is = [](const std::string& answer, bool complete = true) { return outcome("hermes", answer, complete); };
  for (const char* text :
       {"", " ", "a", "a <b> c\n", "Write <tool_call> first.", "<tool_call>", "<tool_call>\n{\"nam",
        "<tool_call>{}</tool_call>", "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
        "a\n <tool_call>[1]</tool_call> b", "<tool_cal", "<tool_call>{\"name\": \"\"}</tool_call>\n"}) {
    EXPECT_EQ(is(text), text);
  }
  EXPECT_EQ(is("<tool_call>x <tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>"),
            "<tool_call>x[c0 time {}]");
  EXPECT_EQ(is("<tool_call>{\"arguments\": {}, \"name\": \"time\"}", false),
            "<tool_call>{\"arguments\": {}, \"name\": \"time\"}");
}

TEST(CallParserTest, ACallThatIsCutStartsInTheStreamAndIsNotInTheMessage) {
  const std::string answer = "Hm.\n<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ber";
  EXPECT_EQ(outcome("hermes", answer, false), "Hm.");
  const Outcome whole = parse("hermes", {answer}, false);
  ASSERT_EQ(whole.events.size(), 3u);
  EXPECT_EQ(whole.events[1].kind, ChatEvent::Kind::kToolCallStart);
  EXPECT_EQ(whole.events[1].name, "weather");
  EXPECT_EQ(whole.events[2].text, "{\"city\": \"Ber");
}

TEST(CallParserTest, ArgumentsArriveAsTheyGrow) {
  const Outcome out = parse("hermes", {"<tool_call>{\"name\": \"weather\", \"arguments\": {", "\"city\"", ": \"B\"}"});
  ASSERT_EQ(out.events.size(), 5u);
  EXPECT_EQ(out.events[1].text, "{");
  EXPECT_EQ(out.events[2].text, "\"city\"");
  EXPECT_EQ(out.events[3].text, ": \"B\"}");
}

TEST(CallParserTest, QwenCoderTypesByTheSchema) {
  const auto is = [](const std::string& answer) { return outcome("qwen3-coder", answer); };
  EXPECT_EQ(
      is("Now:\n\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\n\"York\"\n</parameter>\n<parameter=days>\n"
         "3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n[\"a\", 1]\n</parameter>\n"
         "</function>\n</tool_call>"),
      R"(Now:[c0 weather {"city": "New\n\"York\"", "days": 3, "exact": true, "tags": ["a", 1]}])");
  EXPECT_EQ(
      is("<tool_call>\n<function=weather>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\nmany\n</parameter>\n"
         "<parameter=any>\n{\"a\": null}\n</parameter>\n<parameter=maybe>\nnull\n</parameter>\n<parameter=other>\n1\n"
         "</parameter>\n</function>\n</tool_call>"),
      R"([c0 weather {"city": "42", "days": "many", "any": {"a": null}, "maybe": "null", "other": "1"}])");
  EXPECT_EQ(is("<tool_call><function=time></function></tool_call>"), "[c0 time {}]");
  EXPECT_EQ(is("<tool_call>\n<function=time>\n</tool_call>\n<tool_call>\n<function=time>\n</function>\n</tool_call>"),
            "[c0 time {}][c1 time {}]");
  EXPECT_EQ(is("<tool_call>\n<function=weather>\n<parameter=city>\n\n</parameter>\n</function>\n</tool_call>"),
            R"([c0 weather {"city": ""}])");
  for (const char* text : {"<tool_call>\n<func", "<tool_call>\n{\"name\": \"time\"}", "<tool_call><function= >"}) {
    EXPECT_EQ(is(text), text);
  }
}

TEST(CallParserTest, Glm) {
  const auto is = [](const std::string& answer) { return outcome("glm", answer); };
  EXPECT_EQ(
      is("Yes.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome\n</arg_value>\n<arg_key>days</arg_key>\n"
         "<arg_value>2</arg_value>\n</tool_call>"),
      R"(Yes.[c0 weather {"city": "Rome\n", "days": 2}])");
  EXPECT_EQ(
      is("<tool_call>time</tool_call><tool_call>weather<arg_key>any</arg_key><arg_value>x</arg_value></tool_call>"),
      R"([c0 time {}][c1 weather {"any": "x"}])");
}

TEST(CallParserTest, KimiAndDeepseek) {
  EXPECT_EQ(outcome("kimi-k2",
                    "Ok. <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
                    "<|tool_call_argument_begin|>{\"city\": \"<\"}<|tool_call_end|><|tool_call_begin|>functions.time:1"
                    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"),
            R"(Ok.[c0 weather {"city": "<"}][c1 time {}])");
  EXPECT_EQ(outcome("deepseek-v3",
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{\"a\": 1}\n"
                    "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{}\n```"
                    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            R"([c0 time {"a": 1}][c1 b {}])");
  EXPECT_EQ(outcome("deepseek-v3.1",
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
                    "<｜tool▁calls▁end｜>"),
            R"([c0 time {"a": 1}])");
  EXPECT_EQ(outcome("deepseek-v3.1", "<｜tool▁calls▁begin｜> nothing"), "<｜tool▁calls▁begin｜> nothing");
}

TEST(CallParserTest, LlamaCallsWithTheWholeAnswer) {
  const auto is = [](const std::string& answer, bool complete = true) { return outcome("llama3", answer, complete); };
  EXPECT_EQ(is(" {\"name\": \"weather\", \"parameters\": {\"city\": \"X\"}} "), R"([c0 weather {"city": "X"}])");
  for (const char* text :
       {"{\"name\": \"nobody\", \"parameters\": {}}", "{\"name\": \"time\"}",
        "{\"name\": \"time\", \"parameters\": {}} ok", "{}", "Call {\"name\": \"time\", \"parameters\": {}}"}) {
    EXPECT_EQ(is(text), text);
  }
  EXPECT_EQ(is("{\"name\": \"time\", \"parameters\": {}}", false), "{\"name\": \"time\", \"parameters\": {}}");
}

TEST(CallParserTest, WhatOpensACallIsReadAsItsBeginning) {
  const std::map<std::string, std::string> kRest = {
      {"hermes", " {\"a\": 1}}\n</tool_call>"},
      {"qwen3-coder", "<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"},
      {"glm", "<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
      {"kimi-k2", "{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>"},
      {"deepseek-v3", "{\"a\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"deepseek-v3.1", "{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"llama3", " {\"a\": 1}}"}};
  for (const auto& [style, rest] : kRest) {
    const auto opening = [&](std::optional<std::string_view> tool) {
      std::string text;
      for (const auto& [piece, markup] : syntax(style).opening(tool)) text += piece;
      return text;
    };
    const std::string named = opening("time");
    const bool text = style == "qwen3-coder" || style == "glm";
    EXPECT_EQ(outcome(style, named + rest), text ? R"([c0 time {"a": "1"}])" : R"([c0 time {"a": 1}])") << style;
    EXPECT_TRUE(named.starts_with(opening(std::nullopt) + "time")) << style;
  }
}

TEST(CallParserTest, TemplatesWithoutAKnownWay) {
  EXPECT_EQ(find_call_syntax("<|im_start|>assistant"), nullptr);
  EXPECT_EQ(find_call_syntax("<|channel|>commentary to=functions.f"), nullptr);
}

}  // namespace
}  // namespace weir
