#include "text/chat.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/json.h"

namespace weir {
namespace {

ChatRequest request(std::string_view json) { return parse_chat_request(parse_json(json, "f.json"), "f.json"); }

std::string error_of(std::string_view json) {
  try {
    request(json);
    return "none";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ChatRequest, IsAnArrayOfMessagesOrAnObject) {
  EXPECT_EQ(request(R"([{"role": "user", "content": "a"}])").messages.at(0).content.at(0).text, "a");
  const ChatRequest asked = request(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
      {"type": "image_url", "image_url": {}}]}], "tools": [{"x": 1}], "add_generation_prompt": false,
      "tool_choice": "none", "options": {"thinking": false}, "chat_template_kwargs": {"k": 2}})");
  ASSERT_EQ(asked.messages.at(0).content.size(), 2u);
  EXPECT_EQ(asked.messages[0].content[1].kind, ContentPart::Kind::kImage);
  EXPECT_EQ(asked.tools->size(), 1u);
  EXPECT_FALSE(asked.add_generation_prompt);
  EXPECT_EQ(asked.options.at("tool_choice"), "none");
  EXPECT_EQ(asked.options.at("thinking"), false);
  EXPECT_EQ(asked.options.at("k"), 2);
}

TEST(ChatRequest, ReadsEveryFieldOfMessages) {
  const ChatRequest asked = request(R"([{"role": "assistant", "content": null, "reasoning": "r", "name": "n",
      "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}, {"name": "g", "arguments": {"a": 1}},
      {"name": "h"}]}, {"role": "tool", "tool_call_id": "1", "content": "x"}])");
  const ChatMessage& first = asked.messages[0];
  EXPECT_TRUE(first.content.empty());
  EXPECT_EQ(first.reasoning, "r");
  ASSERT_EQ(first.tool_calls.size(), 3u);
  EXPECT_EQ(std::get<std::string>(first.tool_calls[0].arguments), "{}");
  EXPECT_EQ(std::get<boost::json::object>(first.tool_calls[1].arguments).at("a"), 1);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(first.tool_calls[2].arguments));
  EXPECT_EQ(asked.messages[1].tool_call_id, "1");
  EXPECT_FALSE(asked.messages[1].tool);
}

TEST(ChatRequest, LeavesContentOfUnknownKindsToTheFormat) {
  const ChatRequest asked = request(R"([{"role": "user", "content": [{"type": "audio"}, "a", 5]},
      {"role": "tool", "content": {"output": 1}}])");
  ASSERT_EQ(asked.messages[0].content.size(), 3u);
  EXPECT_EQ(asked.messages[0].content[0].kind, ContentPart::Kind::kOther);
  EXPECT_EQ(asked.messages[0].content[0].text, "a part of type '\"audio\"'");
  EXPECT_EQ(asked.messages[0].content[1].text, "a");
  EXPECT_EQ(asked.messages[1].content.at(0).kind, ContentPart::Kind::kOther);
}

TEST(ChatRequest, ErrorsNameTheField) {
  EXPECT_EQ(error_of("5"), "f.json: expected an array of messages or an object with messages, found '5'");
  EXPECT_EQ(error_of("{}"), "f.json: messages: expected an array, found none");
  EXPECT_EQ(error_of("[1]"), "f.json: messages[0]: expected an object, found '1'");
  EXPECT_EQ(error_of("[{}]"), "f.json: messages[0].role: expected a string, found none");
  EXPECT_EQ(error_of(R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])"),
            "f.json: messages[0].tool_calls[0].function.name: expected the name of the tool, found none");
  EXPECT_EQ(error_of(R"([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}])"),
            "f.json: messages[0].tool_calls[0].arguments: expected a string or an object, found an array");
  EXPECT_EQ(error_of(R"({"messages": [], "tools": {}})"), "f.json: tools: expected an array, found an object");
  EXPECT_EQ(error_of(R"({"messages": [], "add_generation_prompt": 1})"),
            "f.json: add_generation_prompt: expected true or false, found '1'");
}

}  // namespace
}  // namespace weir
