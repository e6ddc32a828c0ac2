#include "server/responses.h"

#include "formats/json.h"
#include "server/dialect_testing.h"

namespace weir::responses {
namespace {

namespace json = boost::json;
using namespace weir::testing;  // scripts

// `fields` over a small body.
json::object body_with(json::object fields) {
  json::object body{{"model", "k3"}, {"input", "Hi"}};
  for (auto& [key, value] : fields) body[key] = value;
  return body;
}

std::string refused(const std::string& field, json::object body) {
  ResponseStore store;
  return refusal_of(field, [&] { make_reply(std::move(body), served(), store); });
}

// The output that clients put together from deltas, checked against what the events of each part's end say.
class Client {
 public:
  explicit Client(const std::vector<json::object>& events) {
    for (size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i].at("sequence_number"), i);
      read(std::string(events[i].at("type").as_string()), events[i]);
    }
  }
  const json::array& output() const { return output_; }

 private:
  void read(const std::string& type, const json::object& event) {
    if (!event.contains("output_index")) return;
    const size_t index = event.at("output_index").to_number<size_t>();
    if (type == "response.output_item.added") {
      EXPECT_EQ(index, output_.size());
      EXPECT_EQ(event.at("item").at("status"), "in_progress");
      output_.push_back(event.at("item"));
      return;
    }
    ASSERT_EQ(index + 1, output_.size()) << "one item is open at a time";
    json::object& item = output_.back().as_object();
    if (type == "response.output_item.done") {
      item["status"] = event.at("item").at("status");
      EXPECT_EQ(event.at("item"), item);
      return;
    }
    EXPECT_EQ(event.at("item_id"), item.at("id"));
    if (type == "response.content_part.added") {
      item["content"].as_array().push_back(event.at("part"));
      return;
    }
    const bool call = item.at("type") == "function_call";
    if (call) {
      read_text(type, event, item, "arguments");
    } else {
      EXPECT_EQ(event.at("content_index"), 0);
      json::object& part = item.at("content").as_array().at(0).as_object();
      if (type == "response.content_part.done") {
        EXPECT_EQ(event.at("part"), part);
      } else {
        read_text(type, event, part, "text");
      }
    }
  }

  void read_text(const std::string& type, const json::object& event, json::object& part, const char* name) {
    if (type.ends_with(".delta")) {
      part[name].as_string() += event.at("delta").as_string();
      if (!event.contains("logprobs")) return;
      for (const json::value& logprob : event.at("logprobs").as_array()) part["logprobs"].as_array().push_back(logprob);
    } else {
      EXPECT_TRUE(type.ends_with(".done")) << type;
      EXPECT_EQ(event.at(name), part.at(name));
    }
  }

  json::array output_;
};

void expect_same(const Outcome& outcome, const std::string& status = "completed") {
  const std::vector<json::object>& events = outcome.events;
  EXPECT_EQ(events[0].at("type"), "response.created");
  EXPECT_EQ(events[1].at("type"), "response.in_progress");
  EXPECT_EQ(events.back().at("type").as_string(), "response." + status);
  const json::object& first = events[0].at("response").as_object();
  EXPECT_EQ(first.at("status"), "in_progress");
  EXPECT_EQ(first.at("output"), json::array());
  EXPECT_EQ(first.at("id"), outcome.body.at("id"));
  EXPECT_EQ(outcome.body.at("status").as_string(), status);
  EXPECT_EQ(events.back().at("response"), outcome.body);
  EXPECT_EQ(Client(events).output(), outcome.body.at("output"));
}

TEST(ResponsesTest, StreamsPutTogetherAreTheResponse) {
  for (const size_t batch : {1, 2, 3, 100}) {
    ResponseStore store;
    const auto reply = make_reply(body_with({{"stream", true}}), served(), store);
    EXPECT_TRUE(reply->streams());
    const Outcome outcome = answered(*reply, full_script(), FinishReason::kStop, "responses_full", batch);
    expect_same(outcome);
    const json::array& output = outcome.body.at("output").as_array();
    ASSERT_EQ(output.size(), 4u);
    EXPECT_EQ(output[0].at("content").at(0).at("text"), "Let me see.");
    EXPECT_EQ(output[0].at("summary"), json::array());
    EXPECT_EQ(output[1].at("content").at(0).at("text"), "I'll look \xF0\x9F\x98\x80");
    EXPECT_EQ(output[2].at("arguments"), R"({"city": "Oslo"})");
    EXPECT_EQ(output[2].at("call_id"), "call_0");
    EXPECT_EQ(output[3].at("name"), "now");
    const json::object& usage = outcome.body.at("usage").as_object();
    const int64_t prompt = reply->job().prompts.front().tokens;
    EXPECT_EQ(usage.at("input_tokens"), prompt);
    EXPECT_EQ(usage.at("input_tokens_details").at("cached_tokens"), 4);
    EXPECT_EQ(usage.at("output_tokens"), 9);
    EXPECT_EQ(usage.at("output_tokens_details").at("reasoning_tokens"), 2);
    EXPECT_EQ(usage.at("total_tokens"), prompt + 9);
    EXPECT_TRUE(outcome.body.at("id").as_string().starts_with("resp_"));
    EXPECT_TRUE(reply->call_prefix(0).starts_with("call_"));
  }
}

TEST(ResponsesTest, WhatIsCutIsIncomplete) {
  ResponseStore store;
  const auto cut = [&](const Script& script, const std::string& name) {
    const auto reply = make_reply(body_with({{"max_output_tokens", 9}}), served(), store);
    EXPECT_EQ(reply->job().requests[0].max_tokens, 9);
    Outcome outcome = answered(*reply, script, FinishReason::kLength, name);
    expect_same(outcome, "incomplete");
    EXPECT_EQ(outcome.body.at("incomplete_details"), (json::value{{"reason", "max_output_tokens"}}));
    return outcome.body;
  };
  const json::object text = cut({{thought("Hm")}, {said("so")}}, "responses_cut_text");
  EXPECT_EQ(text.at("output").at(0).at("status"), "completed");
  EXPECT_EQ(text.at("output").at(1).at("status"), "incomplete");
  const json::object call = cut({{called(0, "get"), argued(0, "{}"), call_ended(0)}, {said("and")}, {called(1, "get")}},
                                "responses_cut_call");
  EXPECT_EQ(call.at("output").as_array().size(), 3u);
  EXPECT_EQ(call.at("output").at(0).at("status"), "completed");
  EXPECT_EQ(call.at("output").at(2).at("status"), "incomplete");
  cut({}, "responses_empty");
}

TEST(ResponsesTest, LogprobsAreThoseOfTheText) {
  ResponseStore store;
  const auto reply =
      make_reply(body_with({{"include", {"message.output_text.logprobs"}}, {"top_logprobs", 2}}), served(), store);
  EXPECT_EQ(reply->job().requests[0].sampling.top_logprobs, 2);
  // 2 is markup, 4 the first half of a character, 6 markup
  const Script script = {{thought("a")}, {thought("b")}, {}, {said("c")}, {}, {said("d")}, {}, {called(0, "get")}};
  const Outcome outcome = answered(*reply, script, FinishReason::kLength, "responses_logprobs", 2);
  expect_same(outcome, "incomplete");
  const json::array& logprobs = outcome.body.at("output").at(1).at("content").at(0).at("logprobs").as_array();
  ASSERT_EQ(logprobs.size(), 3u);
  const Tokenizer& tokenizer = served().text->tokenizer();
  for (size_t i = 0; i < 3; ++i) {
    const std::string_view bytes = tokenizer.token_bytes(static_cast<int32_t>(i) + 3);
    EXPECT_EQ(logprobs[i].at("logprob"), -0.5);
    EXPECT_EQ(logprobs[i].at("bytes").as_array().size(), bytes.size());
  }
}

TEST(ResponsesTest, FaultsFailTheResponse) {
  ResponseStore store;
  const auto reply = make_reply(body_with({}), served(), store);
  const Outcome outcome = answered(*reply, {{said("Hel")}}, FinishReason::kError, "responses_fault");
  const json::object& error = outcome.events[outcome.events.size() - 2];
  EXPECT_EQ(error.at("type"), "error");
  EXPECT_EQ(error.at("message"), "the device has stopped");
  EXPECT_EQ(outcome.events.back().at("type"), "response.failed");
  const json::object& response = outcome.events.back().at("response").as_object();
  EXPECT_EQ(response.at("status"), "failed");
  EXPECT_EQ(response.at("error").at("message"), "the device has stopped");
  EXPECT_EQ(response.at("output").at(0).at("status"), "incomplete");
  EXPECT_EQ(store.count(), 0);
}

TEST(ResponsesTest, ConversationsGoOn) {
  ResponseStore store;
  json::object first_body = body_with({{"instructions", "Be brief."}});
  const auto first = make_reply(std::move(first_body), served(), store);
  const Outcome asked = answered(*first, full_script(), FinishReason::kStop, "responses_first");
  const std::string id(asked.body.at("id").as_string());
  ASSERT_NE(store.get(id), nullptr);
  EXPECT_EQ(parse_json(store.get(id)->response, "stored"), asked.body);
  const json::object next{{"previous_response_id", id},
                          {"input",
                           {{{"type", "function_call_output"}, {"call_id", "call_0"}, {"output", "sunny"}},
                            {{"role", "developer"}, {"content", {{{"type", "input_text"}, {"text", "Go"}}}}}}}};
  const Parsed parsed = parse(next, store);
  const std::vector<ChatMessage>& messages = parsed.body.chat.messages;
  ASSERT_EQ(messages.size(), 4u) << "instructions are not kept";
  EXPECT_EQ(messages[0].json, (json::object{{"role", "user"}, {"content", "Hi"}}));
  EXPECT_EQ(messages[1].reasoning, "Let me see.");
  EXPECT_EQ(messages[1].content.at(0).text, "I'll look \xF0\x9F\x98\x80");
  ASSERT_EQ(messages[1].tool_calls.size(), 2u);
  EXPECT_EQ(messages[1].tool_calls[0].id, "call_0");
  EXPECT_EQ(std::get<std::string>(messages[1].tool_calls[0].arguments), R"({"city": "Oslo"})");
  EXPECT_EQ(messages[2].json,
            (json::object{{"role", "tool"}, {"tool_call_id", "call_0"}, {"content", "sunny"}, {"name", "get"}}));
  EXPECT_EQ(messages[3].json, (json::object{{"role", "system"}, {"content", "Go"}}));
  const Outcome second =
      answered(*make_reply(next, served(), store), {{said("Ok")}}, FinishReason::kStop, "responses_second");
  EXPECT_EQ(second.body.at("previous_response_id").as_string(), id);
  EXPECT_EQ(parse_json(store.get(second.body.at("id").as_string())->items, "items").as_array().size(), 8u);
  EXPECT_TRUE(store.erase(id));
  EXPECT_NE(refusal_of("previous_response_id", [&] { parse(next, store); }).find(id), std::string::npos);
}

TEST(ResponsesTest, OnlyWhatShallBeKeptIs) {
  ResponseStore store;
  answered(*make_reply(body_with({{"store", false}}), served(), store), {{said("Ok")}}, FinishReason::kStop,
           "responses_unstored");
  EXPECT_EQ(store.count(), 0);
  answered(*make_reply(body_with({}), served(), store), {{said("Ok")}}, FinishReason::kStop, "responses_text");
  EXPECT_EQ(store.count(), 1) << "streamed or not, once";
}

TEST(ResponsesTest, FieldsReachTheRequestAndTheResponse) {
  ResponseStore store;
  const json::value tool = {
      {"type", "function"}, {"name", "get"}, {"description", "gets"}, {"parameters", {{"type", "object"}}}};
  const json::object fields{{"instructions", "Be brief."},
                            {"max_output_tokens", 50},
                            {"metadata", {{"k", "v"}}},
                            {"parallel_tool_calls", true},
                            {"store", false},
                            {"temperature", 0.5},
                            {"text", {{"format", {{"type", "text"}}}}},
                            {"tool_choice", "auto"},
                            {"tools", json::array{tool}},
                            {"top_p", 0.9},
                            {"truncation", "disabled"},
                            {"user", "me"}};
  json::object body = body_with(fields);
  body["reasoning"] = {{"effort", "low"}, {"summary", "auto"}};
  body["unknown"] = 1;
  body["include"] = {"reasoning.encrypted_content"};
  const auto reply = make_reply(std::move(body), served(), store);
  const openai::Job& job = reply->job();
  EXPECT_EQ(job.requests[0].max_tokens, 50);
  EXPECT_EQ(job.requests[0].sampling.temperature, 0.5f);
  EXPECT_EQ(job.requests[0].sampling.top_p, 0.9f);
  EXPECT_EQ(job.body.chat.messages[0].json, (json::object{{"role", "system"}, {"content", "Be brief."}}));
  EXPECT_NE(job.prompts[0].rendered.text.find("thinking_effort=low"), std::string::npos);
  const json::value function = {{"name", "get"}, {"description", "gets"}, {"parameters", {{"type", "object"}}}};
  EXPECT_EQ(job.body.chat.tools->at(0), (json::value{{"type", "function"}, {"function", function}}));
  const Outcome outcome = answered(*reply, {{said("Ok")}}, FinishReason::kStop, "responses_fields");
  for (const auto& [name, value] : fields) EXPECT_EQ(outcome.body.at(name), value) << name;
  EXPECT_EQ(outcome.body.at("reasoning").at("effort"), "low");
}

TEST(ResponsesTest, ChoicesAndFormatsReachTheBody) {
  ResponseStore store;
  const auto body_of = [&](json::object more) {
    more["tools"] = json::array{{{"type", "function"}, {"name", "get"}}};
    return parse(body_with(std::move(more)), store).body;
  };
  EXPECT_FALSE(body_of({}).call);
  EXPECT_FALSE(body_of({{"tool_choice", "none"}}).chat.tools);
  EXPECT_EQ(body_of({{"tool_choice", "required"}}).call, "");
  EXPECT_EQ(body_of({{"tool_choice", {{"type", "function"}, {"name", "get"}}}}).call, "get");
  EXPECT_TRUE(body_of({{"parallel_tool_calls", false}}).one_call);
  EXPECT_FALSE(body_of({{"text", {{"format", {{"type", "text"}}}}}}).json_object);
  EXPECT_TRUE(body_of({{"text", {{"format", {{"type", "json_object"}}}}}}).json_object);
}

TEST(ResponsesTest, StoredResponsesHaveObjectsForTheirEnd) {
  EXPECT_EQ(not_found("resp_1").status(), 404);
  EXPECT_EQ(deleted_object("resp_1"), (json::object{{"id", "resp_1"}, {"object", "response"}, {"deleted", true}}));
}

TEST(ResponsesTest, RefusalsNameTheField) {
  refused("input", {{"model", "k3"}});
  refused("input", body_with({{"input", 5}}));
  refused("input", body_with({{"input", json::array()}}));
  refused("previous_response_id", body_with({{"previous_response_id", "resp_1"}}));
  refused("background", body_with({{"background", true}}));
  refused("conversation", body_with({{"conversation", "conv_1"}}));
  refused("prompt", body_with({{"prompt", {{"id", "p"}}}}));
  refused("truncation", body_with({{"truncation", "auto"}}));
  refused("temperature", body_with({{"temperature", 3}}));
  refused("max_output_tokens", body_with({{"max_output_tokens", 0}}));
  refused("store", body_with({{"store", "yes"}}));
  refused("instructions", body_with({{"instructions", 1}}));
  refused("include", body_with({{"include", {"file_search_call.results"}}}));
  refused("top_logprobs", body_with({{"top_logprobs", 2}}));
  refused("top_logprobs", body_with({{"top_logprobs", 21}, {"include", {"message.output_text.logprobs"}}}));
  refused("text.format.type", body_with({{"text", {{"format", {{"type", "json_schema"}}}}}}));
  refused("text.format.type", body_with({{"text", {{"format", {{"type", "yaml"}}}}}}));
  refused("text.verbosity", body_with({{"text", {{"verbosity", "low"}}}}));
  refused("reasoning.effort", body_with({{"reasoning", {{"effort", "some"}}}}));
  refused("reasoning.summary", body_with({{"reasoning", {{"summary", "long"}}}}));
  refused("tools[0].type", body_with({{"tools", json::array{{{"type", "web_search"}}}}}));
  refused("tools[0].name", body_with({{"tools", json::array{{{"type", "function"}}}}}));
  const json::value tool = {{"type", "function"}, {"name", "x"}};
  refused("tools", body_with({{"tools", json::array(257, tool)}}));
  refused("tool_choice", body_with({{"tool_choice", "all"}}));
  refused("tool_choice", body_with({{"tool_choice", {{"type", "file_search"}}}}));
  refused("tool_choice.name",
          body_with({{"tools", json::array{tool}}, {"tool_choice", {{"type", "function"}, {"name", "y"}}}}));
  refused("tools[0].strict",
          body_with({{"tools", json::array{{{"type", "function"}, {"name", "x"}, {"strict", true}}}}}));
  json::object many;
  for (int i = 0; i < 17; ++i) many[std::to_string(i)] = "v";
  refused("metadata", body_with({{"metadata", many}}));
  refused("metadata.k", body_with({{"metadata", {{"k", 1}}}}));
}

TEST(ResponsesTest, RefusalsNameThePlaceInTheInput) {
  const auto item = [](json::value value) { return body_with({{"input", json::array{std::move(value)}}}); };
  refused("input[0]", item("text"));
  refused("input[0].type", item({{"type", "computer_call"}}));
  refused("input[0].role", item({{"role", "tool"}, {"content", "x"}}));
  refused("input[0].content", item({{"role", "user"}}));
  const json::value image = {{"type", "input_image"}, {"image_url", "data:"}};
  EXPECT_NE(refused("input[0].content[0].type", item({{"role", "user"}, {"content", json::array{image}}}))
                .find("input_image"),
            std::string::npos);
  refused("input[0].call_id", item({{"type", "function_call"}, {"name", "x"}, {"arguments", "{}"}}));
  refused("input[0].output[0].type",
          item({{"type", "function_call_output"}, {"call_id", "c"}, {"output", json::array{image}}}));
  refused("input[0].content[0].text",
          item({{"type", "reasoning"}, {"content", json::array{{{"type", "reasoning_text"}}}}}));
}

}  // namespace
}  // namespace weir::responses
