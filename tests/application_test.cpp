// The application over real connections, with an engine whose answers are given: what clients see.
#include "server/application.h"

#include <cstdlib>

#include "tests/support/k3_answers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace weir::test {
namespace {

using namespace std::chrono_literals;
const std::string kChat = "/v1/chat/completions";

class ApplicationTest : public testing::Test {
 protected:
  static const K3Answers& answers() {
    static const K3Answers instance;
    return instance;
  }
  explicit ApplicationTest(ReplayEngine::Options options = {}) : engine_(with_answers(std::move(options))) {}
  // With the engine's streams ended before the server's end.
  ~ApplicationTest() override { engine_.stop(); }

  static ReplayEngine::Options with_answers(ReplayEngine::Options options) {
    if (!options.answer) options.answer = [](const Request& request) { return answers()(request); };
    return options;
  }
  TestServer& server(Application::Options options = {}) {
    server_ = std::make_unique<TestServer>(std::move(options));
    server_->application.open(answers().served(), engine_);
    return *server_;
  }
  static json::object hello(json::object more = {}) { return answers().body(0, std::move(more)); }
  static std::string type_of(const HttpAnswer& answer) {
    return std::string(answer.json().at("error").at("type").as_string());
  }

  ReplayEngine engine_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(ApplicationTest, StreamsPutTogetherAreTheAnswer) {
  TestServer& s = server();
  for (size_t i = 0; i < answers().cases().size(); ++i) {
    const json::object& expected = answers().cases()[i].as_object();
    const json::object& parsed = expected.at("parsed").as_object();
    SCOPED_TRACE(std::string(expected.at("name").as_string()));
    if (expected.at("ids").as_array().empty()) continue;
    const HttpAnswer whole = s.post(kChat, answers().body(i, {{"logprobs", true}, {"top_logprobs", 2}}));
    const HttpAnswer streamed =
        s.post(kChat, answers().body(i, {{"logprobs", true}, {"top_logprobs", 2}, {"stream", true}}));
    ASSERT_EQ(whole.status, 200) << whole.body;
    const json::object message = whole.json().at("choices").at(0).at("message").as_object();
    const json::value* reasoning = message.if_contains("reasoning_content");
    EXPECT_EQ(reasoning != nullptr ? *reasoning : json::value(""),
              parsed.at("reasoning").is_null() ? json::value("") : parsed.at("reasoning"));
    // What was sent can't be taken back: a call that was cut, an argument that another one of its name replaces.
    const bool sent_more = parsed.at("finish_reason") == "length" && !parsed.at("tool_calls").as_array().empty();
    if (!sent_more && expected.at("name") != "repeated argument key") expect_same_choices(streamed, whole);
  }
}

TEST_F(ApplicationTest, ChunksAreThoseOfTheApi) {
  const HttpAnswer answer =
      server().post(kChat, hello({{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"n", 2}}));
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const std::vector<json::value> events = answer.events();
  for (int64_t i = 0; i < 2; ++i) {
    const json::object& first = events.at(static_cast<size_t>(i)).as_object();
    EXPECT_EQ(first.at("object"), "chat.completion.chunk");
    EXPECT_EQ(first.at("model"), "k3");
    EXPECT_EQ(first.at("system_fingerprint"), "weir-test");
    EXPECT_TRUE(first.at("id").as_string().starts_with("chatcmpl-"));
    EXPECT_TRUE(first.at("usage").is_null());
    EXPECT_EQ(first.at("choices").at(0).at("index"), i);
    EXPECT_EQ(first.at("choices").at(0).at("delta").at("role"), "assistant");
    EXPECT_TRUE(first.at("choices").at(0).at("finish_reason").is_null());
  }
  const json::object& usage = events.at(events.size() - 2).as_object();
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("completion_tokens").to_number<int64_t>(),
            2 * static_cast<int64_t>(answers().cases()[0].at("ids").as_array().size()));
  EXPECT_TRUE(usage.at("timings").as_object().contains("predicted_ms"));
  EXPECT_EQ(events.back(), "[DONE]");
  // Without the chunk of usage the last one of the choice has the timings.
  const std::vector<json::value> plain = server_->post(kChat, hello({{"stream", true}})).events();
  EXPECT_TRUE(plain.at(plain.size() - 2).as_object().contains("timings"));
}

TEST_F(ApplicationTest, CompletionsStreamWithEchoSeveralPromptsAndLogprobs) {
  TestServer& s = server();
  for (const bool echo : {false, true}) {
    json::object body{{"prompt", {"Hello there", "Über \xF0\x9F\x98\x80 all"}}, {"n", 2}, {"max_tokens", 5}};
    body["echo"] = echo;
    if (!echo) body["logprobs"] = 3;
    const HttpAnswer whole = s.post("/v1/completions", body);
    body["stream"] = true;
    const HttpAnswer streamed = s.post("/v1/completions", body);
    expect_same_choices(streamed, whole);
    EXPECT_EQ(whole.json().at("choices").as_array().size(), 4u);
  }
}

TEST_F(ApplicationTest, AStopStringEndsTheAnswerAndItsRequest) {
  ReplayEngine slow({.answer = [](const Request& request) { return answers()(request); }, .step = 10ms});
  TestServer s;
  s.application.open(answers().served(), slow);
  const json::object more{{"stop", {"llo"}}};  // of "Hello!"
  const HttpAnswer whole = s.post(kChat, hello(more));
  const json::object choice = whole.json().at("choices").at(0).as_object();
  EXPECT_EQ(choice.at("message").at("content"), "He");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  json::object streaming = hello(more);
  streaming["stream"] = true;
  expect_same_choices(s.post(kChat, streaming), whole);
  EXPECT_TRUE(within(2000ms, [&] { return slow.snapshot().scheduler.cancelled == 2; }));
}

TEST_F(ApplicationTest, RefusalsNameTheField) {
  TestServer& s = server();
  const auto expect = [&](const HttpAnswer& answer, int status, json::value param, std::string_view word) {
    EXPECT_EQ(answer.status, status) << answer.body;
    const json::object error = answer.json().at("error").as_object();
    EXPECT_EQ(error.at("param"), param) << answer.body;
    EXPECT_NE(std::string(error.at("message").as_string()).find(word), std::string::npos) << answer.body;
  };
  expect(s.post(kChat, hello({{"temperature", "hot"}})), 400, "temperature", "expected a number");
  expect(s.post(kChat, hello({{"top_logprobs", 21}, {"logprobs", true}})), 400, "top_logprobs", "20");
  expect(s.post(kChat, {{"messages", {{{"role", 5}, {"content", "x"}}}}}), 400, "messages[0].role", "expected");
  expect(s.post(kChat, hello({{"max_tokens", 5000}})), 400, "messages", "4096");
  expect(s.post(kChat, hello({{"model", "other"}})), 404, "model", "does not exist");
  expect(s.post("/v1/completions", {{"prompt", "x"}, {"suffix", "y"}}), 400, "suffix", "not supported");
  expect(HttpCall(s.port(), "POST", kChat, "{\"messages\": \"\xff\"}").finish(), 400, nullptr, "not JSON");
  expect(HttpCall(s.port(), "POST", kChat, std::string(100, '[')).finish(), 400, nullptr, "not JSON");
  expect(HttpCall(s.port(), "POST", kChat, "[]").finish(), 400, nullptr, "object");
  expect(s.get("/nowhere"), 404, nullptr, "nothing at");
  const HttpAnswer wrong = s.get(kChat);
  expect(wrong, 405, nullptr, "takes POST");
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(engine_.snapshot().scheduler.submitted, 0);
}

TEST_F(ApplicationTest, NamesOfTheModel) {
  TestServer& s = server({.aliases = {"gpt-4o"}});
  EXPECT_EQ(s.post(kChat, hello({{"model", "gpt-4o"}})).json().at("model"), "gpt-4o");
  const json::array list = s.get("/v1/models").json().at("data").as_array();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].at("id"), "k3");
  EXPECT_EQ(list[0].at("max_model_len"), 4096);
  EXPECT_EQ(s.get("/v1/models/gpt-4o").json().at("root"), "k3");
  EXPECT_EQ(s.get("/v1/models/gpt-5").status, 404);
}

TEST_F(ApplicationTest, KeysAreAskedForEverywhereButWhereNothingIsGiven) {
  TestServer& s = server({.keys = ApiKeys({"secret", "other"})});
  for (const char* path : {"/health", "/health/live", "/health/ready", "/"}) EXPECT_EQ(s.get(path).status, 200) << path;
  for (const char* path : {"/v1/models", "/metrics", "/engine"}) {
    EXPECT_EQ(s.get(path).status, 401) << path;
    EXPECT_EQ(s.get(path, {"Authorization: Bearer secre"}).status, 401) << path;
    EXPECT_EQ(s.get(path, {"Authorization: Bearer secrets"}).status, 401) << path;
    EXPECT_EQ(s.get(path, {"Authorization: Bearer other"}).status, 200) << path;
    EXPECT_EQ(s.get(path, {"x-api-key: secret"}).status, 200) << path;
  }
  EXPECT_EQ(s.post(kChat, hello()).json().at("error").at("code"), "invalid_api_key");
}

TEST_F(ApplicationTest, OtherOriginsOnlyWhenAskedFor) {
  TestServer& closed = server();
  EXPECT_FALSE(closed.get("/v1/models").headers.contains("access-control-allow-origin"));
  EXPECT_EQ(HttpCall(closed.port(), "OPTIONS", kChat).finish().status, 405);
  TestServer& open = server({.cors_origin = "https://a.example"});
  EXPECT_EQ(open.post(kChat, hello({{"stream", true}})).headers.at("access-control-allow-origin"), "https://a.example");
  const HttpAnswer preflight = HttpCall(open.port(), "OPTIONS", kChat).finish();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), "POST");
}

TEST_F(ApplicationTest, FieldsThatNobodyKnowsAreIgnoredAndToldOnce) {
  std::mutex mutex;
  std::vector<std::string> lines;
  TestServer& s = server({.log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  }});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(s.post(kChat, hello({{"tempratur", 1}, {"user", "u"}})).status, 200);
  const std::lock_guard lock(mutex);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("tempratur"), std::string::npos);
}

TEST_F(ApplicationTest, HeadIsGetWithoutTheBody) {
  TestServer& s = server();
  const HttpAnswer head = HttpCall(s.port(), "HEAD", "/health").finish();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  EXPECT_EQ(HttpCall(s.port(), "HEAD", kChat).finish().status, 405);
}

TEST_F(ApplicationTest, WordsToIdsAndBack) {
  TestServer& s = server();
  const json::object counted = s.post("/tokenize", {{"prompt", "Hello there"}}).json();
  EXPECT_EQ(counted.at("count").to_number<size_t>(), counted.at("tokens").as_array().size());
  EXPECT_EQ(s.post("/detokenize", {{"tokens", counted.at("tokens")}}).json().at("prompt"), "Hello there");
  const json::object chat = hello();
  const std::string rendered(s.post("/apply_template", chat).json().at("prompt").as_string());
  EXPECT_NE(rendered.find("case 0."), std::string::npos);
  const json::value ids = s.post("/tokenize", chat).json().at("tokens");
  EXPECT_EQ(s.post("/detokenize", {{"tokens", ids}}).json().at("content").as_string(), rendered);
  EXPECT_EQ(s.post("/detokenize", {{"tokens", {-1}}}).status, 400);
  EXPECT_EQ(s.post("/tokenize", {{"words", 1}}).json().at("error").at("param"), "prompt");
}

TEST_F(ApplicationTest, TheEngineCanBeWatched) {
  TestServer& s = server();
  s.post(kChat, hello());
  const json::object all = s.get("/engine").json();
  EXPECT_EQ(all.at("state"), "ready");
  EXPECT_EQ(all.at("model").at("name"), "k3");
  EXPECT_EQ(all.at("counters").at("finished"), 1);
  const json::array& steps = all.at("steps").as_array();
  ASSERT_GT(steps.size(), 3u);
  EXPECT_EQ(steps[0].at("spans").at(0).at(0), 1) << "the first request";
  const int64_t third = steps[2].at("step").to_number<int64_t>();
  const json::array newer = s.get(concat("/engine?since=", third)).json().at("steps").as_array();
  EXPECT_EQ(newer.at(0).at("step").to_number<int64_t>(), third + 1);
  EXPECT_EQ(s.get("/engine?since=x").status, 400);
  EXPECT_EQ(json::serialize(all).find("case 0"), std::string::npos);
}

TEST_F(ApplicationTest, MetricsAreWhatPrometheusReads) {
  TestServer& s = server();
  s.post(kChat, hello({{"stream", true}}));
  s.post(kChat, hello({{"temperature", -1}}));
  const HttpAnswer answer = s.get("/metrics");
  EXPECT_EQ(answer.headers.at("content-type"), PrometheusText::kContentType);
  for (const char* line : {"weir_state{state=\"ready\"} 1\n", "weir_errors_total{kind=\"bad_request\"} 1\n",
                           "weir_http_responses_total{code=\"400\"} 1\n", "weir_requests_finished_total 1\n",
                           "weir_time_to_first_token_seconds_count 1\n", "weir_request_duration_seconds_count 1\n",
                           "weir_requests_running 0\n", "weir_cache_lookups_total{reason=\"no_anchor\"} 0\n"}) {
    EXPECT_NE(answer.body.find(line), std::string::npos) << line << answer.body;
  }
  if (std::system("command -v promtool >/dev/null") != 0) GTEST_SKIP() << "promtool (Debian: prometheus) is missing";
  TemporaryFolder folder;
  const std::string path = (folder.path() / "metrics").string();
  std::FILE* file = std::fopen(path.c_str(), "w");
  std::fwrite(answer.body.data(), 1, answer.body.size(), file);
  std::fclose(file);
  EXPECT_EQ(std::system(("promtool check metrics <" + path).c_str()), 0);
}

TEST_F(ApplicationTest, SilentStreamsAreKeptAlive) {
  TestServer& s = server({.keep_alive = 50ms});
  engine_.hold(true);
  HttpCall call(s.port(), "POST", kChat, json::serialize(hello({{"stream", true}})));
  EXPECT_TRUE(call.wait_for(": keep-alive\n\n"));
  engine_.hold(false);
  EXPECT_TRUE(call.wait_for("[DONE]"));
}

TEST_F(ApplicationTest, ClientsThatLeaveTakeTheirRequestsWithThem) {
  TestServer& s = server();
  engine_.hold(true);
  for (const bool stream : {true, false}) {
    HttpCall call(s.port(), "POST", kChat, json::serialize(hello({{"stream", stream}, {"n", 3}})));
    ASSERT_TRUE(within(5000ms, [&] { return engine_.snapshot().running == 3; })) << stream;
    call.leave();
    EXPECT_TRUE(within(5000ms, [&] { return engine_.snapshot().running == 0; })) << stream;
  }
  EXPECT_EQ(engine_.snapshot().scheduler.cancelled, 6);
}

}  // namespace
}  // namespace weir::test
