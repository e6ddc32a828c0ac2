// For tests of dialects: answers by a script, and what replies make of them, as a stream and at once.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "server/reply.h"

namespace weir::testing {

namespace json = boost::json;

inline const openai::Served& served() {
  static const ModelText text = ModelText::open(WEIR_FIXTURES "/kimi_k3/text");
  static const openai::Served instance{.text = &text,
                                       .name = "k3",
                                       .fingerprint = "weir-test",
                                       .vocab = text.tokenizer().vocab_size(),
                                       .context = 4096,
                                       .tokens = 2048,
                                       .stop_tokens = {7}};
  return instance;
}

// The events of each token.
using Script = std::vector<std::vector<ChatEvent>>;

inline ChatEvent thought(std::string text) { return {.kind = ChatEvent::Kind::kReasoning, .text = std::move(text)}; }
inline ChatEvent said(std::string text) { return {.kind = ChatEvent::Kind::kContent, .text = std::move(text)}; }
inline ChatEvent called(int index, std::string name) {
  return {.kind = ChatEvent::Kind::kToolCallStart,
          .index = index,
          .name = std::move(name),
          .id = "call_" + std::to_string(index)};
}
inline ChatEvent argued(int index, std::string text) {
  return {.kind = ChatEvent::Kind::kToolCallArguments, .index = index, .text = std::move(text)};
}
inline ChatEvent call_ended(int index) { return {.kind = ChatEvent::Kind::kToolCallEnd, .index = index}; }

// Everything that an answer may have: reasoning, content whose tokens cut words, calls with arguments and without.
inline const Script& full_script() {
  static const Script script = {{thought("Let me ")},
                                {thought("see.")},
                                {said("I'll l")},
                                {said("ook \xF0\x9F\x98\x80")},
                                {called(0, "get"), argued(0, R"({"city":)")},
                                {argued(0, R"( "Oslo"})")},
                                {call_ended(0)},
                                {called(1, "now"), call_ended(1)}};
  return script;
}

class ScriptedStream final : public AnswerStream {
 public:
  explicit ScriptedStream(Script script) : script_(std::move(script)) {}

  void push(int32_t id, std::vector<ChatEvent>& events) override {
    for (const ChatEvent& event : script_.at(static_cast<size_t>(id))) {
      if (event.kind == ChatEvent::Kind::kToolCallEnd) message_.tool_calls.push_back({});
      events.push_back(event);
    }
  }
  void finish(std::vector<ChatEvent>&) override {}
  const ParsedMessage& message() const override { return message_; }

 private:
  Script script_;
  ParsedMessage message_;
};

struct Outcome {
  std::vector<json::object> events;  // their data
  json::object body;
};

// Whole events, each named as its data's type says.
inline std::vector<json::object> parse_events(const std::string& bytes) {
  std::vector<json::object> out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = bytes.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "a stream that ends inside an event: " << bytes.substr(at);
      break;
    }
    const std::string event = bytes.substr(at, end - at);
    const size_t line = event.find('\n');
    EXPECT_TRUE(event.starts_with("event: ")) << event;
    EXPECT_EQ(event.compare(line, 7, "\ndata: "), 0) << event;
    out.push_back(json::parse(event.substr(line + 7)).as_object());
    EXPECT_EQ(out.back().at("type").as_string(), event.substr(7, line - 7));
    at = end + 2;
  }
  return out;
}

// For tests/dialect_types_test.py.
inline void capture(const std::string& name, const std::string& text) {
  if (const char* folder = std::getenv("WEIR_DIALECT_CAPTURES"))
    std::ofstream(std::string(folder) + "/" + name) << text;
}

// The script's tokens, `batch` of them between two calls of add().
inline Outcome answered(Reply& reply, const Script& script, FinishReason reason, const std::string& name,
                        size_t batch = 1) {
  const openai::Body& body = reply.job().body;
  Answer answer(std::make_unique<ScriptedStream>(script), {.stop = body.stop, .logprobs = body.logprobs()});
  std::string bytes;
  std::vector<ChatEvent> events;
  const auto add = [&] {
    reply.add(0, answer, events, bytes);
    events.clear();
  };
  reply.begin(bytes);
  for (size_t i = 0; i < script.size(); ++i) {
    if (!answer.push({.id = static_cast<int32_t>(i), .logprob = -0.5f}, events)) break;
    if ((i + 1) % batch == 0) add();
  }
  RequestEnd end{.reason = reason};
  end.usage = {.prompt_tokens = reply.job().prompts.front().tokens,
               .cached_tokens = 4,
               .generated_tokens = static_cast<int64_t>(script.size()) + 1};
  answer.end(end, events);
  add();
  if (reason == FinishReason::kError) {
    reply.fault({&answer, 1}, "the device has stopped", bytes);
    capture(name + ".stream", bytes);
    return {.events = parse_events(bytes), .body = {}};
  }
  reply.end({&answer, 1}, bytes);
  Outcome out{.events = parse_events(bytes), .body = reply.body({&answer, 1})};
  capture(name + ".stream", bytes);
  capture(name + ".json", json::serialize(out.body));
  return out;
}

// What `make` refuses, which must name the field.
template <class Make>
std::string refusal_of(const std::string& field, Make make) {
  try {
    make();
  } catch (const openai::Refusal& refusal) {
    EXPECT_EQ(refusal.status(), 400);
    const json::value param = refusal.body().at("error").at("param");
    EXPECT_EQ(param, json::value(field)) << refusal.what();
    EXPECT_NE(std::string_view(refusal.what()).find(field), std::string_view::npos) << refusal.what();
    return refusal.what();
  }
  ADD_FAILURE() << field << ": not refused";
  return {};
}

}  // namespace weir::testing
