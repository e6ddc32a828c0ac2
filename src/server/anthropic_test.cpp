#include "server/anthropic.h"

#include "server/dialect_testing.h"

namespace weir::anthropic {
namespace {

namespace json = boost::json;
using namespace weir::testing;  // scripts

// `fields` over a small body.
json::object body_with(json::object fields) {
  json::object body{{"model", "k3"}, {"max_tokens", 100}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  for (auto& [key, value] : fields) body[key] = value;
  return body;
}

json::object body_of(json::array messages) { return body_with({{"messages", std::move(messages)}}); }

std::string refused(const std::string& field, json::object body) {
  return refusal_of(field, [&] { make_reply(std::move(body), served()); });
}

json::object thinking_on() { return {{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}}; }

// The content that clients put together.
json::array content_of(const std::vector<json::object>& events) {
  json::array content;
  std::string arguments;
  for (const json::object& event : events) {
    const std::string_view type = event.at("type").as_string();
    if (!type.starts_with("content_block")) continue;
    const size_t index = event.at("index").to_number<size_t>();
    if (type == "content_block_start") {
      EXPECT_EQ(index, content.size());
      content.push_back(event.at("content_block"));
      arguments.clear();
      continue;
    }
    EXPECT_EQ(index + 1, content.size()) << "one block is open at a time";
    json::object& block = content.back().as_object();
    if (type == "content_block_stop") {
      if (!arguments.empty()) block["input"] = json::parse(arguments);
      continue;
    }
    for (const auto& [key, value] : event.at("delta").as_object()) {
      if (key == "partial_json") arguments += value.as_string();
      if (key == "type" || key == "partial_json") continue;
      block[key].as_string() += value.as_string();
    }
  }
  return content;
}

void expect_same(const Outcome& outcome) {
  const json::object& start = outcome.events.front().at("message").as_object();
  const json::object& delta = outcome.events[outcome.events.size() - 2];
  EXPECT_EQ(outcome.events.front().at("type"), "message_start");
  EXPECT_EQ(delta.at("type"), "message_delta");
  EXPECT_EQ(outcome.events.back().at("type"), "message_stop");
  json::object streamed = start;
  streamed["content"] = content_of(outcome.events);
  for (const auto& [key, value] : delta.at("delta").as_object()) streamed[key] = value;
  for (const auto& [key, value] : delta.at("usage").as_object()) streamed["usage"].as_object()[key] = value;
  streamed["timings"] = delta.at("timings");
  EXPECT_EQ(streamed, outcome.body) << json::serialize(streamed) << "\n" << json::serialize(outcome.body);
}

TEST(AnthropicTest, StreamsPutTogetherAreTheMessage) {
  for (const size_t batch : {1, 2, 3, 100}) {
    const auto reply = make_reply(body_with(thinking_on()), served());
    const Outcome outcome = answered(*reply, full_script(), FinishReason::kStop, "anthropic_full", batch);
    expect_same(outcome);
    const json::array& content = outcome.body.at("content").as_array();
    ASSERT_EQ(content.size(), 4u);
    EXPECT_EQ(content[0].at("thinking"), "Let me see.");
    EXPECT_EQ(content[0].at("signature"), outcome.body.at("id"));
    EXPECT_EQ(content[1].at("text"), "I'll look \xF0\x9F\x98\x80");
    EXPECT_EQ(content[2].at("input"), (json::value{{"city", "Oslo"}}));
    EXPECT_EQ(content[3].at("input"), json::object());
    EXPECT_EQ(outcome.body.at("stop_reason"), "tool_use");
    EXPECT_TRUE(outcome.body.at("stop_sequence").is_null());
    EXPECT_TRUE(outcome.body.at("id").as_string().starts_with("msg_"));
    EXPECT_TRUE(reply->call_prefix(0).starts_with("toolu_"));
    const json::object& usage = outcome.body.at("usage").as_object();
    EXPECT_EQ(usage.at("cache_read_input_tokens"), 4);
    EXPECT_EQ(usage.at("input_tokens"), reply->job().prompts.front().tokens - 4);
    EXPECT_EQ(usage.at("output_tokens"), 9);
    EXPECT_EQ(usage.at("output_tokens_details").at("thinking_tokens"), 2);
  }
}

TEST(AnthropicTest, ReasoningIsShownToThoseWhoAskForIt) {
  json::object omitted = thinking_on();
  omitted["thinking"].as_object()["display"] = "omitted";
  const auto reply = make_reply(body_with(omitted), served());
  const Outcome without_text = answered(*reply, full_script(), FinishReason::kStop, "anthropic_omitted");
  expect_same(without_text);
  EXPECT_EQ(without_text.body.at("content").at(0).at("thinking"), "");
  const auto hidden = make_reply(body_with({}), served());
  const Outcome outcome = answered(*hidden, full_script(), FinishReason::kStop, "anthropic_hidden");
  expect_same(outcome);
  EXPECT_EQ(outcome.body.at("content").at(0).at("type"), "text");
}

TEST(AnthropicTest, StopReasonsSayWhyItEnded) {
  const Script hello = {{said("Hello ")}, {said("wo")}, {said("rld, again")}};
  const auto outcome_of = [&](json::object more, FinishReason reason, const std::string& name) {
    const Outcome outcome = answered(*make_reply(body_with(std::move(more)), served()), hello, reason, name);
    expect_same(outcome);
    return outcome.body;
  };
  EXPECT_EQ(outcome_of({}, FinishReason::kStop, "anthropic_text").at("stop_reason"), "end_turn");
  EXPECT_EQ(outcome_of({}, FinishReason::kLength, "anthropic_length").at("stop_reason"), "max_tokens");
  EXPECT_EQ(outcome_of({{"max_tokens", 1000000}}, FinishReason::kLength, "anthropic_context").at("stop_reason"),
            "model_context_window_exceeded");
  const json::object stopped =
      outcome_of({{"stop_sequences", {"x", "world"}}}, FinishReason::kLength, "anthropic_stop");
  EXPECT_EQ(stopped.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(stopped.at("stop_sequence"), "world");
  EXPECT_EQ(stopped.at("content").at(0).at("text"), "Hello ");
}

TEST(AnthropicTest, CutCallsAndLaterTextAreTheSameBothWays) {
  const Script script = {{called(0, "get"), argued(0, "{}"), call_ended(0)}, {said("and")}, {called(1, "get")}};
  const Outcome outcome =
      answered(*make_reply(body_with({}), served()), script, FinishReason::kLength, "anthropic_cut");
  expect_same(outcome);
  EXPECT_EQ(outcome.body.at("content").as_array().size(), 3u);
  EXPECT_EQ(outcome.body.at("stop_reason"), "max_tokens");
  const Outcome empty = answered(*make_reply(body_with({}), served()), {}, FinishReason::kStop, "anthropic_empty");
  expect_same(empty);
  EXPECT_TRUE(empty.body.at("content").as_array().empty());
}

TEST(AnthropicTest, InputsThatAreNoObjectsStayReadable) {
  const Script script = {{called(0, "get"), argued(0, "[1"), call_ended(0)}};
  const auto reply = make_reply(body_with({}), served());
  Answer answer(std::make_unique<ScriptedStream>(script), {});
  std::vector<ChatEvent> events;
  answer.push({.id = 0}, events);
  answer.end({.reason = FinishReason::kStop}, events);
  EXPECT_EQ(reply->body({&answer, 1}).at("content").at(0).at("input"), (json::value{{"arguments", "[1"}}));
}

TEST(AnthropicTest, FaultsAreErrorEvents) {
  const auto reply = make_reply(body_with({}), served());
  const Outcome outcome = answered(*reply, {{said("Hel")}}, FinishReason::kError, "anthropic_fault");
  EXPECT_EQ(outcome.events.back(), error_object(500, "the device has stopped"));
  std::string alive;
  reply->keep_alive(alive);
  EXPECT_EQ(alive, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

TEST(AnthropicTest, ErrorsHaveTheTypesOfTheirStatus) {
  for (const auto& [status, type] : std::vector<std::pair<int, std::string>>{{400, "invalid_request_error"},
                                                                             {401, "authentication_error"},
                                                                             {404, "not_found_error"},
                                                                             {413, "request_too_large"},
                                                                             {429, "rate_limit_error"},
                                                                             {500, "api_error"},
                                                                             {503, "overloaded_error"}}) {
    const json::value expected = {{"type", "error"}, {"error", {{"type", type}, {"message", "m"}}}};
    EXPECT_EQ(json::parse(error_body(status, "m")), expected);
    capture("anthropic_error_" + std::to_string(status) + ".error", error_body(status, "m"));
  }
}

TEST(AnthropicTest, ConversationsBecomeMessages) {
  const json::value result = {{"type", "tool_result"},
                              {"tool_use_id", "toolu_1"},
                              {"is_error", true},
                              {"content", {{{"type", "text"}, {"text", "no"}}, {{"type", "text"}, {"text", "net"}}}}};
  json::object body =
      body_of({{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}},
               {{"role", "assistant"},
                {"content",
                 {{{"type", "thinking"}, {"thinking", "hm"}, {"signature", "s"}},
                  {{"type", "redacted_thinking"}, {"data", "x"}},
                  {{"type", "text"}, {"text", "Wait."}},
                  {{"type", "tool_use"}, {"id", "toolu_1"}, {"name", "get"}, {"input", {{"k", 1}}}}}}},
               {{"role", "user"}, {"content", {result, {{"type", "text"}, {"text", "go on"}}}}}});
  body["system"] = {{{"type", "text"}, {"text", "Be"}, {"cache_control", {{"type", "ephemeral"}}}},
                    {{"type", "text"}, {"text", "brief."}}};
  const Messages parsed = parse_messages(std::move(body));
  const std::vector<ChatMessage>& messages = parsed.body.chat.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].json, (json::object{{"role", "system"}, {"content", "Be\nbrief."}}));
  EXPECT_EQ(messages[1].json, (json::object{{"role", "user"}, {"content", "a\nb"}}));
  EXPECT_EQ(messages[2].reasoning, "hm");
  EXPECT_EQ(messages[2].content.at(0).text, "Wait.");
  EXPECT_EQ(messages[2].tool_calls.at(0).name, "get");
  EXPECT_EQ(std::get<std::string>(messages[2].tool_calls[0].arguments), R"({"k":1})");
  EXPECT_EQ(
      messages[3].json,
      (json::object{{"role", "tool"}, {"tool_call_id", "toolu_1"}, {"content", "Error: no\nnet"}, {"name", "get"}}));
  EXPECT_EQ(messages[4].json, (json::object{{"role", "user"}, {"content", "go on"}}));
}

TEST(AnthropicTest, FieldsReachTheRequest) {
  const auto reply = make_reply(body_with({{"temperature", 0.5},
                                           {"top_p", 0.9},
                                           {"top_k", 40},
                                           {"stop_sequences", {"a", "b"}},
                                           {"stream", true},
                                           {"metadata", {{"user_id", "u"}}},
                                           {"tools", {{{"name", "get"}, {"input_schema", {{"type", "object"}}}}}},
                                           {"tool_choice", {{"type", "auto"}}},
                                           {"unknown", 1}}),
                                served());
  const openai::Job& job = reply->job();
  EXPECT_TRUE(reply->streams());
  EXPECT_EQ(job.requests.size(), 1u);
  EXPECT_EQ(job.requests[0].max_tokens, 100);
  EXPECT_EQ(job.requests[0].sampling.temperature, 0.5f);
  EXPECT_EQ(job.requests[0].sampling.top_p, 0.9f);
  EXPECT_EQ(job.requests[0].sampling.top_k, 40);
  EXPECT_EQ(job.body.stop, (std::vector<std::string>{"a", "b"}));
  const json::value tool = {{"type", "function"},
                            {"function", {{"name", "get"}, {"description", ""}, {"parameters", {{"type", "object"}}}}}};
  EXPECT_EQ(job.body.chat.tools->at(0), tool);
}

TEST(AnthropicTest, ToolChoicesReachTheBody) {
  const auto chosen = [](json::object choice) {
    const json::value tool = {{"name", "get"}, {"input_schema", json::object()}};
    return parse_messages(body_with({{"tools", json::array{tool}}, {"tool_choice", std::move(choice)}})).body;
  };
  EXPECT_FALSE(chosen({{"type", "auto"}}).call);
  EXPECT_FALSE(chosen({{"type", "none"}}).chat.tools);
  EXPECT_EQ(chosen({{"type", "any"}}).call, "");
  EXPECT_EQ(chosen({{"type", "tool"}, {"name", "get"}}).call, "get");
  EXPECT_FALSE(chosen({{"type", "any"}}).one_call);
  EXPECT_TRUE(chosen({{"type", "any"}, {"disable_parallel_tool_use", true}}).one_call);
}

TEST(AnthropicTest, ThinkingReachesTheMarkup) {
  const auto rendered = [](json::object more) {
    return make_reply(body_with(std::move(more)), served())->job().prompts[0].rendered.text;
  };
  EXPECT_TRUE(rendered({}).ends_with("<|open|>response<|sep|>"));
  EXPECT_EQ(rendered({{"thinking", {{"type", "disabled"}}}}), rendered({}));
  EXPECT_TRUE(rendered(thinking_on()).ends_with("<|open|>think<|sep|>"));
  EXPECT_EQ(rendered({{"thinking", {{"type", "adaptive"}}}}), rendered(thinking_on()));
  json::object low = thinking_on();
  low["output_config"] = {{"effort", "low"}};
  EXPECT_NE(rendered(low).find("thinking_effort=low"), std::string::npos);
}

TEST(AnthropicTest, TokensAreCountedAsPromptsHaveThem) {
  json::object body = body_with({});
  const int64_t tokens = make_reply(body, served())->job().prompts.front().tokens;
  body.erase("max_tokens");
  EXPECT_EQ(count_tokens(body, served()), (json::object{{"input_tokens", tokens}}));
  const json::object longer = body_of({{{"role", "user"}, {"content", std::string(100000, 'a') + " b c"}}});
  EXPECT_GT(count_tokens(longer, served()).at("input_tokens").to_number<int64_t>(), 4096);
}

TEST(AnthropicTest, RefusalsNameTheField) {
  json::object no_limit = body_with({});
  no_limit.erase("max_tokens");
  refused("max_tokens", no_limit);
  refused("max_tokens", body_with({{"max_tokens", 0}}));
  refused("temperature", body_with({{"temperature", 1.5}}));
  refused("top_k", body_with({{"top_k", -1}}));
  refused("top_p", body_with({{"top_p", 2}}));
  refused("stop_sequences", body_with({{"stop_sequences", {""}}}));
  refused("stop_sequences", body_with({{"stop_sequences", json::array(17, "a")}}));
  refused("stop_sequences", body_with({{"stop_sequences", {std::string(257, 'a')}}}));
  refused("stream", body_with({{"stream", 1}}));
  refused("thinking.budget_tokens", body_with({{"thinking", {{"type", "enabled"}}}}));
  refused("thinking.type", body_with({{"thinking", {{"type", "often"}}}}));
  refused("metadata", body_with({{"metadata", "me"}}));
  refused("mcp_servers", body_with({{"mcp_servers", {{{"name", "x"}}}}}));
  refused("output_config.format", body_with({{"output_config", {{"format", {{"type", "json_schema"}}}}}}));
  refused("output_config.effort", body_with({{"output_config", {{"effort", "some"}}}}));
  refused("tools[0].type", body_with({{"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}}}}}));
  refused("tools[0].input_schema", body_with({{"tools", {{{"name", "x"}}}}}));
  const json::value tool = {{"name", "x"}, {"input_schema", json::object()}};
  refused("tools", body_with({{"tools", json::array(257, tool)}}));
  refused("tool_choice.type", body_with({{"tool_choice", {{"type", "all"}}}}));
  refused("tools[0].strict",
          body_with({{"tools", json::array{{{"name", "x"}, {"input_schema", json::object()}, {"strict", true}}}}}));
  refused("tool_choice.name",
          body_with({{"tools", json::array{tool}}, {"tool_choice", {{"type", "tool"}, {"name", "y"}}}}));
  refused("tool_choice.name", body_with({{"tool_choice", {{"type", "tool"}}}}));
}

TEST(AnthropicTest, RefusalsNameThePlaceInTheConversation) {
  const auto user = [](json::value content) { return body_of({{{"role", "user"}, {"content", std::move(content)}}}); };
  const json::value image = {{"type", "image"}, {"source", {{"type", "base64"}}}};
  EXPECT_NE(refused("messages[0].content[0].type", user(json::array{image})).find("image"), std::string::npos);
  refused("messages[0].content[0].type", user(json::array{{{"type", "document"}}}));
  refused("messages[0].content[0].content[0].type",
          user(json::array{{{"type", "tool_result"}, {"tool_use_id", "1"}, {"content", json::array{image}}}}));
  refused("messages[0].content[0].tool_use_id", user(json::array{{{"type", "tool_result"}}}));
  refused("messages[0].content[0].text", user(json::array{{{"type", "text"}, {"text", 1}}}));
  refused("messages[0].content[0]", user(json::array{"text"}));
  refused("messages[0].content", user(5));
  refused("messages[0].role", body_of({{{"role", "tool"}, {"content", "x"}}}));
  refused("messages", body_of({}));
  refused("messages", body_of({{{"role", "assistant"}, {"content", "x"}}}));
  refused("messages", body_with({{"messages", nullptr}}));
  refused("system[0].type", body_with({{"system", json::array{image}}}));
  try {
    make_reply(user(json::string(100000, 'a')), served());
    FAIL() << "longer than the context";
  } catch (const openai::Refusal& refusal) {
    EXPECT_EQ(refusal.body().at("error").at("param"), "messages");
    EXPECT_NE(std::string_view(refusal.what()).find("4096"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace weir::anthropic
