// Bodies to requests and answers to responses, with golden answers in Kimi K3's markup (text/chat_k3.json).
#include "server/openai.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include <fstream>

#include "formats/json.h"
#include "tests/support/temporary_folder.h"

namespace weir::openai {
namespace {

namespace json = boost::json;

const std::string kFolder = WEIR_FIXTURES "/kimi_k3/text";

const ModelText& text() {
  static const ModelText model_text = ModelText::open(kFolder);
  return model_text;
}
const Served& served() {
  static const Served instance{.text = &text(),
                               .name = "k3",
                               .fingerprint = "weir-test",
                               .vocab = text().tokenizer().vocab_size(),
                               .context = 4096,
                               .tokens = 2048,
                               .stop_tokens = {7}};
  return instance;
}

Body parse_chat(json::object more) {
  more["messages"] = {{{"role", "user"}, {"content", "Hi"}}};
  return parse_body(Endpoint::kChat, std::move(more));
}

// The answer of these ids, of which the last one ended the request.
Answer answered(const Job& job, std::span<const int32_t> ids, bool stopped = true) {
  Answer answer = answer_of(job, 0, served(), "call_");
  std::vector<ChatEvent> events;
  const size_t tokens = ids.size() - (stopped ? 1 : 0);
  for (size_t i = 0; i < tokens; ++i) answer.push({.id = ids[i], .logprob = -0.5f}, events);
  RequestEnd end{.reason = stopped ? FinishReason::kStop : FinishReason::kLength,
                 .stop_token = stopped ? ids.back() : -1};
  end.usage = {.prompt_tokens = 9, .cached_tokens = 4, .generated_tokens = static_cast<int64_t>(ids.size())};
  answer.end(end, events);
  EXPECT_EQ(events.back().kind, ChatEvent::Kind::kEnd);
  EXPECT_EQ(events.back().text, answer.message().finish_reason);
  // What was shown on the way is the answer.
  std::string reasoning, content;
  for (const ChatEvent& event : events) {
    if (event.kind == ChatEvent::Kind::kReasoning) reasoning += event.text;
    if (event.kind == ChatEvent::Kind::kContent) content += event.text;
  }
  EXPECT_EQ(reasoning, answer.message().reasoning);
  EXPECT_EQ(content, answer.message().content);
  return answer;
}

TEST(OpenAiTest, AnswersInMarkupBecomeMessages) {
  int with_calls = 0, with_reasoning = 0, compared = 0;
  const json::value cases = read_json_file(kFolder + "/chat_k3.json");
  for (const json::value& c : cases.at("parse").as_array()) {
    SCOPED_TRACE(std::string(c.at("name").as_string()));
    const json::object& parsed = c.at("parsed").as_object();
    const Job job = prepare(
        parse_chat({{"chat_template_kwargs", {{"thinking", c.at("start") == "think"}}}, {"logprobs", true}}), served());
    std::vector<int32_t> ids;
    for (const json::value& id : c.at("ids").as_array()) ids.push_back(id.to_number<int32_t>());
    if (ids.empty()) continue;
    const bool stopped = text().tokenizer().id_of("<|end_of_msg|>") == ids.back();
    const Answer answer = answered(job, ids, stopped);
    const json::object out = response(job, {&answer, 1}, served(), {.id = "chatcmpl-1", .created = 5});
    const json::object& choice = out.at("choices").at(0).as_object();
    const json::object& message = choice.at("message").as_object();
    const json::array& calls = parsed.at("tool_calls").as_array();
    ASSERT_EQ(message.contains("tool_calls"), !calls.empty());
    if (calls.empty()) {
      EXPECT_EQ(message.at("content").as_string(),
                parsed.at("content").is_null() ? "" : parsed.at("content").as_string());
    } else {
      ++with_calls;
      const json::array& given = message.at("tool_calls").as_array();
      ASSERT_EQ(given.size(), calls.size());
      for (size_t i = 0; i < given.size(); ++i) {
        EXPECT_EQ(given[i].at("type"), "function");
        EXPECT_TRUE(given[i].at("id").as_string().starts_with("call_"));
        EXPECT_TRUE(given[i].at("function").at("arguments").is_string());
      }
      EXPECT_EQ(choice.at("finish_reason"), stopped ? "tool_calls" : "length");
    }
    const bool reasons = !parsed.at("reasoning").is_null() && !parsed.at("reasoning").as_string().empty();
    ASSERT_EQ(message.contains("reasoning_content"), reasons);
    const int64_t reasoning_tokens =
        out.at("usage").at("completion_tokens_details").at("reasoning_tokens").to_number<int64_t>();
    if (reasons) {
      ++with_reasoning;
      EXPECT_EQ(message.at("reasoning_content"), parsed.at("reasoning"));
      EXPECT_GT(reasoning_tokens, 0);
      EXPECT_LE(reasoning_tokens, static_cast<int64_t>(ids.size()));
    } else {
      EXPECT_EQ(reasoning_tokens, 0);
    }
    EXPECT_EQ(choice.at("logprobs").at("content").as_array().size(), ids.size() - (stopped ? 1 : 0));
    ++compared;
  }
  EXPECT_GT(compared, 5);
  EXPECT_GT(with_calls, 1);
  EXPECT_GT(with_reasoning, 1);
}

TEST(OpenAiTest, ResponsesCarryUsageAndTimings) {
  const Job job = prepare(parse_chat({}), served());
  const Answer answer = answered(job, std::vector<int32_t>{39, 72}, false);
  const json::object out = response(job, {&answer, 1}, served(), {.id = "chatcmpl-1", .created = 5});
  EXPECT_EQ(out.at("id"), "chatcmpl-1");
  EXPECT_EQ(out.at("created"), 5);
  EXPECT_EQ(out.at("model"), "k3");
  EXPECT_EQ(out.at("system_fingerprint"), "weir-test");
  const auto prompt = static_cast<int64_t>(job.prompts[0].tokens);
  EXPECT_EQ(out.at("usage").at("prompt_tokens"), prompt);
  EXPECT_EQ(out.at("usage").at("total_tokens"), prompt + 2);
  EXPECT_EQ(out.at("usage").at("prompt_tokens_details").at("cached_tokens"), 4);
  EXPECT_EQ(out.at("timings").at("cached_n"), 4);
  EXPECT_EQ(out.at("timings").at("predicted_n"), 2);
  EXPECT_EQ(out.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_TRUE(out.at("choices").at(0).at("logprobs").is_null());
}

TEST(OpenAiTest, FieldsReachTheRequest) {
  Body body = parse_chat({{"max_tokens", 5},
                          {"max_completion_tokens", 7},
                          {"temperature", 0.5},
                          {"top_p", 0.9},
                          {"top_k", 40},
                          {"min_p", 0.1},
                          {"presence_penalty", 1},
                          {"frequency_penalty", -1},
                          {"repetition_penalty", 1.5},
                          {"logit_bias", {{"5", -100}}},
                          {"seed", uint64_t{18446744073709551615u}},
                          {"n", 2},
                          {"stop", {"a", "b"}},
                          {"min_tokens", 3},
                          {"stop_token_ids", {11}},
                          {"logprobs", true},
                          {"top_logprobs", 4},
                          {"stream", true},
                          {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(body.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(body.stream && body.include_usage);
  const Job job = prepare(std::move(body), served());
  ASSERT_EQ(job.requests.size(), 2u);
  const Request& request = job.requests[0];
  EXPECT_EQ(request.max_tokens, 7);
  const SamplingOptions& s = request.sampling;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.top_k, 40);
  EXPECT_EQ(s.min_p, 0.1f);
  EXPECT_EQ(s.presence_penalty, 1);
  EXPECT_EQ(s.frequency_penalty, -1);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -100.f}}));
  EXPECT_EQ(s.seed, 18446744073709551615u);
  EXPECT_EQ(job.requests[1].sampling.seed, 0u);
  EXPECT_EQ(s.min_tokens, 3);
  EXPECT_EQ(s.top_logprobs, 4);
  for (const int32_t id : {11, 7, *text().tokenizer().id_of("<|end_of_msg|>")}) {
    EXPECT_NE(std::ranges::find(request.stop_tokens, id), request.stop_tokens.end()) << id;
  }
  EXPECT_TRUE(prepare(parse_chat({{"ignore_eos", true}}), served()).requests[0].stop_tokens.empty());
}

TEST(OpenAiTest, WhatIsLeftOutHasTheDefaults) {
  SamplingOptions defaults;
  defaults.temperature = 0.25f;
  defaults.seed = 9;
  const Body body = parse_body(Endpoint::kCompletions, {{"prompt", "Hi"}, {"temperature", nullptr}}, defaults);
  EXPECT_EQ(body.sampling.temperature, 0.25f);
  EXPECT_EQ(body.sampling.seed, 9u);
  EXPECT_EQ(prepare(body, served()).requests[0].max_tokens, kDefaultTokens);
  const Job job = prepare(parse_chat({}), served());
  EXPECT_EQ(job.requests[0].max_tokens, 2048 - job.prompts[0].tokens);
}

TEST(OpenAiTest, EffortReachesTheMarkup) {
  const auto rendered = [](json::object more) {
    return prepare(parse_chat(std::move(more)), served()).prompts[0].rendered.text;
  };
  EXPECT_NE(rendered({{"reasoning_effort", "low"}}).find("thinking_effort=low"), std::string::npos);
  EXPECT_NE(rendered({{"reasoning_effort", "xhigh"}}).find("thinking_effort=max"), std::string::npos);
  EXPECT_EQ(rendered({}).find("thinking_effort="), std::string::npos);
  EXPECT_NE(rendered({{"reasoning_effort", "medium"}}).find("thinking_effort=high"), std::string::npos);
  EXPECT_NE(rendered({{"reasoning_effort", "medium"}, {"chat_template_kwargs", {{"thinking_effort", "low"}}}})
                .find("thinking_effort=low"),
            std::string::npos);
  EXPECT_TRUE(rendered({{"reasoning_effort", "none"}}).ends_with("<|open|>response<|sep|>"));
  EXPECT_EQ(rendered({{"options", {{"thinking", false}}}}), rendered({})) << "not a field of the API";
  const Body body = parse_body(Endpoint::kChat, {{"messages", {{{"role", "developer"}, {"content", "Be brief."}}}}});
  EXPECT_EQ(body.chat.messages.at(0).role, "system");
}

TEST(OpenAiTest, RefusalsAreErrorObjects) {
  try {
    parse_chat({{"temperature", "hot"}});
    FAIL();
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.status(), 400);
    const json::object body = refusal.body();
    const json::object& error = body.at("error").as_object();
    EXPECT_EQ(error.at("param"), "temperature");
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_TRUE(error.at("code").is_null());
  }
  EXPECT_EQ(Refusal("x", "", "", 500).body().at("error").at("type"), "server_error");
  EXPECT_EQ(Refusal::of(Error("no field here")).body().at("error").at("param"), nullptr);
}

json::array weather_tools() {
  return {{{"type", "function"},
           {"function",
            {{"name", "weather"},
             {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}}}};
}

// What the body is refused for.
std::string refused(json::object body, const Served& by = served()) {
  try {
    prepare(parse_chat(std::move(body)), by);
    return "";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.status(), 400);
    return std::string(refusal.body().at("error").at("param").as_string());
  }
}

// The answer of this text, in the ids that the tokenizer gives it.
Answer written(const Job& job, const Served& by, std::string_view text, std::vector<ChatEvent>& events,
               bool* cancelled = nullptr) {
  Answer answer = answer_of(job, 0, by, "call_");
  for (const int32_t id : by.text->tokenizer().encode(text, SpecialTokens::kParse, false)) {
    if (answer.push({.id = id}, events)) continue;
    if (cancelled != nullptr) *cancelled = true;
    break;
  }
  answer.end({.reason = FinishReason::kStop, .stop_token = by.text->tokenizer().eos().value_or(-1)}, events);
  return answer;
}

std::string call_in(const Answer& answer) {
  const std::vector<ParsedToolCall>& calls = answer.message().tool_calls;
  return calls.size() == 1 ? calls[0].id + " " + calls[0].name + " " + calls[0].arguments : "not one call";
}

TEST(OpenAiTest, AChosenToolIsCalledInMarkup) {
  for (const bool thinking : {true, false}) {
    for (const bool named : {true, false}) {
      const json::value choice =
          named ? json::value{{"type", "function"}, {"function", {{"name", "weather"}}}} : json::value("required");
      const Job job = prepare(parse_chat({{"tools", weather_tools()},
                                          {"tool_choice", choice},
                                          {"chat_template_kwargs", {{"thinking", thinking}}}}),
                              served());
      const std::string& prompt = job.prompts[0].rendered.text;
      EXPECT_NE(prompt.find("tool_choice=required"), std::string::npos);
      EXPECT_TRUE(prompt.ends_with(named ? "<|open|>tools<|sep|><|open|>call tool=\"weather\" index=\"1\"<|sep|>"
                                         : "<|open|>tools<|sep|><|open|>call tool=\""))
          << prompt;
      EXPECT_EQ(prompt.find("<|close|>think<|sep|>") != std::string::npos, thinking);
      std::vector<ChatEvent> events;
      const Answer answer = written(
          job, served(),
          std::string(named ? "" : "weather\" index=\"1\"<|sep|>") +
              "<|open|>argument key=\"city\" type=\"string\"<|sep|>Oslo<|close|>argument<|sep|><|close|>call<|sep|>"
              "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
          events);
      EXPECT_EQ(call_in(answer), R"(call_0 weather {"city": "Oslo"})");
      EXPECT_EQ(answer.message().finish_reason, "tool_calls");
      EXPECT_EQ(answer.message().content, "");
      EXPECT_EQ(answer.message().reasoning, "");
      ASSERT_FALSE(events.empty());
      EXPECT_EQ(events[0].kind, ChatEvent::Kind::kToolCallStart);
      EXPECT_EQ(events[0].name, "weather");
    }
  }
  const Job none = prepare(parse_chat({{"tools", weather_tools()}, {"tool_choice", "none"}}), served());
  EXPECT_EQ(none.prompts[0].rendered.text.find("weather"), std::string::npos);
}

TEST(OpenAiTest, OneCallEndsTheAnswer) {
  const std::string call = "<|open|>call tool=\"weather\" index=\"1\"<|sep|><|close|>call<|sep|>";
  const std::string text = "<|close|>response<|sep|><|open|>tools<|sep|>" + call + call + "<|close|>tools<|sep|>";
  for (const bool parallel : {true, false}) {
    const Job job = prepare(parse_chat({{"tools", weather_tools()},
                                        {"parallel_tool_calls", parallel},
                                        {"chat_template_kwargs", {{"thinking", false}}}}),
                            served());
    std::vector<ChatEvent> events;
    bool cancelled = false;
    const Answer answer = written(job, served(), text, events, &cancelled);
    EXPECT_EQ(cancelled, !parallel);
    EXPECT_EQ(answer.message().tool_calls.size(), parallel ? 2u : 1u);
    EXPECT_EQ(answer.message().finish_reason, "tool_calls");
    EXPECT_EQ(std::ranges::count(events, ChatEvent::Kind::kToolCallEnd, &ChatEvent::kind), parallel ? 2 : 1);
    EXPECT_EQ(events.back().kind, ChatEvent::Kind::kEnd);
  }
}

// A tokenizer of the fixtures with a chat template.
class TemplateServed {
 public:
  explicit TemplateServed(const std::string& name) {
    const json::value chats = read_json_file(WEIR_FIXTURES "/chat/chat.json");
    for (const json::value& one : chats.at("templates").as_array()) {
      if (one.at("name").as_string() != boost::json::string_view(name)) continue;
      std::ofstream(folder_.path() / "chat_template.jinja") << std::string(one.at("template").as_string());
    }
    std::filesystem::copy_file(WEIR_FIXTURES "/tokenizers/qwen2/tokenizer.json", folder_.path() / "tokenizer.json");
    text_ = ModelText::open(folder_.path());
    served_ = {.text = &text_,
               .name = "q",
               .vocab = text_.tokenizer().vocab_size(),
               .context = 4096,
               .tokens = 4096,
               .stop_tokens = {*text_.tokenizer().id_of("<|im_end|>")}};
  }
  const Served& operator*() const { return served_; }

 private:
  test::TemporaryFolder folder_;
  ModelText text_ = ModelText::open(kFolder);
  Served served_;
};

TEST(OpenAiTest, AChosenToolIsCalledBehindATemplate) {
  const TemplateServed qwen("qwen3_thinking");
  const json::value named = {{"type", "function"}, {"function", {{"name", "weather"}}}};
  for (const json::value& choice : {named, json::value("required")}) {
    const Job job = prepare(parse_chat({{"tools", weather_tools()}, {"tool_choice", choice}}), *qwen);
    EXPECT_TRUE(job.prompts[0].rendered.text.ends_with(
        choice.is_string() ? "<|im_start|>assistant\n<tool_call>\n{\"name\": \""
                           : "<|im_start|>assistant\n<tool_call>\n{\"name\": \"weather\", \"arguments\":"))
        << job.prompts[0].rendered.text;
    std::vector<ChatEvent> events;
    const std::string rest =
        std::string(choice.is_string() ? "weather\", \"arguments\":" : "") + " {\"city\": \"Oslo\"}}\n</tool_call>";
    const Answer answer = written(job, *qwen, rest, events);
    EXPECT_EQ(call_in(answer), R"(call_0 weather {"city": "Oslo"})");
    EXPECT_EQ(answer.message().content, "");
    EXPECT_EQ(answer.message().finish_reason, "tool_calls");
  }
}

TEST(OpenAiTest, CallsBehindATemplateFollowReasoningAndNeedTools) {
  const TemplateServed qwen("qwen3_thinking");
  const std::string text =
      "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n"
      "</tool_call>";
  std::vector<ChatEvent> events;
  const Answer with = written(prepare(parse_chat({{"tools", weather_tools()}}), *qwen), *qwen, text, events);
  EXPECT_EQ(with.message().reasoning, "Hm.");
  EXPECT_EQ(with.message().content, "I look.");
  EXPECT_EQ(call_in(with), "call_0 weather {}");
  for (json::object body : {json::object{}, json::object{{"tools", weather_tools()}, {"tool_choice", "none"}}}) {
    const Answer without = written(prepare(parse_chat(std::move(body)), *qwen), *qwen, text, events);
    EXPECT_TRUE(without.message().tool_calls.empty());
    EXPECT_TRUE(without.message().content.starts_with("I look.\n<tool_call>"));
    EXPECT_EQ(without.message().finish_reason, "stop");
  }
}

TEST(OpenAiTest, EffortReachesTemplates) {
  const auto prompt = [](const TemplateServed& by, json::object more) {
    return prepare(parse_chat(std::move(more)), *by).prompts[0].rendered.text;
  };
  const TemplateServed harmony("harmony"), deepseek("deepseek"), qwen("qwen3_thinking");
  for (const auto& [effort, word] : {std::pair{"none", "LOW"},
                                     {"minimal", "LOW"},
                                     {"low", "LOW"},
                                     {"medium", "MEDIUM"},
                                     {"high", "HIGH"},
                                     {"xhigh", "HIGH"},
                                     {"max", "HIGH"}}) {
    EXPECT_NE(prompt(harmony, {{"reasoning_effort", effort}}).find(concat("Effort: ", word)), std::string::npos)
        << effort;
    const bool thinks = std::string_view(effort) != "none";
    EXPECT_TRUE(prompt(deepseek, {{"reasoning_effort", effort}}).ends_with(thinks ? "<think>\n" : "</think>"))
        << effort;
    EXPECT_EQ(prompt(qwen, {{"reasoning_effort", effort}}).find("</think>") == std::string::npos, thinks) << effort;
  }
  EXPECT_TRUE(prompt(deepseek, {{"reasoning_effort", "high"}, {"chat_template_kwargs", {{"thinking", false}}}})
                  .ends_with("</think>"));
  EXPECT_EQ(refused({{"reasoning_effort", "huge"}}), "reasoning_effort");
}

TEST(OpenAiTest, AForcedCallEndsTheReasoningThatAPromptHasBegun) {
  const TemplateServed deepseek("deepseek");
  const Job job = prepare(
      parse_chat(
          {{"tools", weather_tools()}, {"tool_choice", "required"}, {"chat_template_kwargs", {{"thinking", true}}}}),
      *deepseek);
  EXPECT_TRUE(job.prompts[0].rendered.text.ends_with(
      "<think>\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"));
  std::vector<ChatEvent> events;
  const Answer answer =
      written(job, *deepseek, "weather\n```json\n{\"city\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", events);
  EXPECT_EQ(call_in(answer), R"(call_0 weather {"city": 1})");
  EXPECT_EQ(answer.message().content + answer.message().reasoning, "");
}

TEST(OpenAiTest, ToolChoicesThatCantBeAreRefused) {
  const json::value stranger = {{"type", "function"}, {"function", {{"name", "stranger"}}}};
  const json::value named = {{"type", "function"}, {"function", {{"name", "weather"}}}};
  EXPECT_EQ(refused({{"tools", weather_tools()}, {"tool_choice", stranger}}), "tool_choice.function.name");
  EXPECT_EQ(refused({{"tool_choice", "required"}}), "tool_choice");
  EXPECT_EQ(refused({{"tool_choice", named}}), "tool_choice.function.name");
  EXPECT_EQ(refused({{"tools", weather_tools()}, {"tool_choice", "always"}}), "tool_choice");
  EXPECT_EQ(refused({{"tools", weather_tools()}, {"tool_choice", {{"type", "allowed_tools"}}}}), "tool_choice");
  EXPECT_EQ(refused({{"tool_choice", "none"}}), "");
  json::array strict = weather_tools();
  strict[0].at("function").as_object()["strict"] = true;
  EXPECT_EQ(refused({{"tools", strict}}), "tools[0].function.strict");
  const auto tool = [](json::object function) {
    return json::array{{{"type", "function"}, {"function", std::move(function)}}};
  };
  EXPECT_EQ(refused({{"tools", tool({{"name", ""}})}}), "tools[0].function.name");
  EXPECT_EQ(refused({{"tools", tool({{"name", "f"}, {"description", 5}})}}), "tools[0].function.description");
  EXPECT_EQ(refused({{"tools", tool({{"name", "f"}, {"parameters", "x"}})}}), "tools[0].function.parameters");
  const TemplateServed mistral("mistral_inst");
  EXPECT_EQ(refused({{"tools", weather_tools()}, {"tool_choice", "required"}}, *mistral), "tool_choice");
  EXPECT_EQ(refused({{"tools", weather_tools()}, {"tool_choice", "auto"}}, *mistral), "");
}

TEST(OpenAiTest, ResponseFormats) {
  const json::object object{{"type", "json_object"}};
  const Job job = prepare(parse_chat({{"response_format", object}, {"n", 2}}), served());
  EXPECT_NE(job.prompts[0].rendered.text.find("response_format=json_object"), std::string::npos);
  ASSERT_TRUE(job.requests[0].mask && job.requests[1].mask);
  EXPECT_NE(job.requests[0].mask, job.requests[1].mask);
  EXPECT_FALSE(prepare(parse_chat({{"response_format", {{"type", "text"}}}}), served()).requests[0].mask);
  EXPECT_EQ(refused({{"response_format", {{"type", "json_schema"}}}}), "response_format.type");
  EXPECT_EQ(refused({{"response_format", {{"type", "xml"}}}}), "response_format.type");
  EXPECT_EQ(refused({{"response_format", object}, {"ignore_eos", true}}), "ignore_eos");
  EXPECT_EQ(refused({{"response_format", object}, {"min_tokens", 3}}), "min_tokens");
  EXPECT_EQ(refused({{"response_format", object}, {"stop_token_ids", {65}}}), "stop_token_ids");
  EXPECT_EQ(refused({{"response_format", object}, {"tools", weather_tools()}, {"tool_choice", "required"}}),
            "tool_choice");
  EXPECT_THROW(parse_body(Endpoint::kCompletions, {{"prompt", "a"}, {"response_format", object}}), Refusal);
  for (const char* field : {"guided_json", "json_schema", "grammar", "structured_outputs"}) {
    EXPECT_EQ(refused({{field, "x"}}), field);
  }
}

TEST(OpenAiTest, BoundsOfStops) {
  EXPECT_EQ(refused({{"stop", json::array(16, json::value(std::string(256, 'a')))}}), "");
  EXPECT_EQ(refused({{"stop", json::array(17, json::value("a"))}}), "stop");
  EXPECT_EQ(refused({{"stop", std::string(257, 'a')}}), "stop");
  EXPECT_EQ(refused({{"stop", ""}}), "stop");
  EXPECT_EQ(refused({{"stop_token_ids", {1 << 20}}}), "stop_token_ids");
  EXPECT_EQ(refused({{"stop_token_ids", {-1}}}), "stop_token_ids[0]");
  EXPECT_EQ(refused({{"min_tokens", -1}}), "min_tokens");
}

}  // namespace
}  // namespace weir::openai
