// The application while things go wrong or come to an end: a full queue, faults, a dead engine, loading, draining.
#include "server/application.h"

#include "tests/support/k3_answers.h"
#include "tests/support/test_server.h"

namespace weir::test {
namespace {

using namespace std::chrono_literals;
const std::string kChat = "/v1/chat/completions";

const K3Answers& answers() {
  static const K3Answers instance;
  return instance;
}

json::object hello(json::object more = {}) { return answers().body(0, std::move(more)); }
std::string streamed() { return json::serialize(hello({{"stream", true}})); }

// The golden answers; with `error`, half of one and then the error.
ReplayEngine::Options replay(const std::string& error = {}) {
  return {.answer =
              [error](const Request& request) {
                ReplayAnswer answer = answers()(request);
                if (!error.empty()) answer = {{answer.ids.begin(), answer.ids.begin() + 5}, error};
                return answer;
              },
          .max_running = 1,
          .max_waiting = 1};
}

// Ready, with an engine that gives no token yet.
struct HeldServer {
  HeldServer() {
    server.application.open(answers().served(), engine);
    engine.hold(true);
  }
  ReplayEngine engine{replay()};
  TestServer server;
};

TEST(ApplicationStatesTest, AFullQueueSaysWhenToComeAgain) {
  HeldServer held;
  auto& [engine, server] = held;
  HttpCall first(server.port(), "POST", kChat, streamed());
  ASSERT_TRUE(first.wait_for("assistant"));
  HttpCall second(server.port(), "POST", kChat, streamed());
  ASSERT_TRUE(second.wait_for("assistant"));
  for (const json::object& body : {hello(), hello({{"stream", true}})}) {
    const HttpAnswer third = server.post(kChat, body);
    EXPECT_EQ(third.status, 429);
    EXPECT_EQ(third.headers.at("retry-after"), "1");
    EXPECT_EQ(third.json().at("error").at("code"), "queue_full");
  }
  engine.hold(false);
  EXPECT_TRUE(first.wait_for("[DONE]") && second.wait_for("[DONE]"));
  EXPECT_EQ(server.post(kChat, hello()).status, 200);
}

TEST(ApplicationStatesTest, ABodyThatFitsOnlyInPartIsRefusedAsAWhole) {
  HeldServer held;
  auto& [engine, server] = held;
  EXPECT_EQ(server.post(kChat, hello({{"n", 3}})).status, 429);
  EXPECT_TRUE(within(5000ms, [&] { return engine.snapshot().scheduler.cancelled == 2; }));
}

TEST(ApplicationStatesTest, AFaultIsAnErrorAndNeverASilentEnd) {
  ReplayEngine engine(replay("a logit is not finite"));
  TestServer server;
  server.application.open(answers().served(), engine);
  const HttpAnswer whole = server.post(kChat, hello());
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json().at("error").at("message"), "a logit is not finite");
  EXPECT_EQ(whole.json().at("error").at("type"), "server_error");
  const std::vector<json::value> events = server.post(kChat, hello({{"stream", true}})).events();
  ASSERT_GT(events.size(), 2u) << "what came before the fault was sent";
  EXPECT_EQ(events.back().at("error").at("message"), "a logit is not finite");
  for (const json::value& event : events) EXPECT_NE(event, "[DONE]");
  EXPECT_EQ(server.get("/health").status, 200) << "one request's fault is not the engine's";
}

TEST(ApplicationStatesTest, ADeadEngineIsRedAndItsStreamsEndWithAnError) {
  HeldServer held;
  auto& [engine, server] = held;
  HttpCall stream(server.port(), "POST", kChat, streamed());
  ASSERT_TRUE(stream.wait_for("assistant"));
  engine.die("out of memory");
  EXPECT_EQ(server.post(kChat, hello()).status, 503) << "before anybody has said so";
  server.application.fault("out of memory");
  EXPECT_EQ(stream.finish().events().back().at("error").at("message"), "out of memory");
  for (const char* path : {"/health", "/health/live", "/health/ready"}) {
    EXPECT_EQ(server.get(path).status, 503);
    EXPECT_EQ(server.get(path).json().at("state"), "faulted");
  }
  EXPECT_NE(server.get("/health").json().at("reason").as_string().find("out of memory"), std::string::npos);
  EXPECT_EQ(server.post(kChat, hello()).json().at("error").at("code"), "faulted");
}

TEST(ApplicationStatesTest, WhileLoadingOnlyHealthAnswers) {
  ReplayEngine engine(replay());
  TestServer server;
  EXPECT_EQ(server.get("/health/live").status, 200);
  const HttpAnswer health = server.get("/health/ready");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json().at("state"), "loading");
  EXPECT_TRUE(health.headers.contains("retry-after"));
  EXPECT_EQ(server.post(kChat, hello()).json().at("error").at("code"), "loading");
  EXPECT_EQ(server.get("/v1/models").status, 503);
  EXPECT_EQ(server.get("/engine").json().at("state"), "loading");
  EXPECT_EQ(server.get("/metrics").status, 200);
  server.application.open(answers().served(), engine);
  EXPECT_EQ(server.get("/health/ready").json().at("state"), "ready");
  EXPECT_EQ(server.post(kChat, hello()).status, 200);
}

TEST(ApplicationStatesTest, ADrainLetsWhatRunsEndAndTakesNothingNew) {
  HeldServer held;
  auto& [engine, server] = held;
  HttpCall running(server.port(), "POST", kChat, streamed());
  ASSERT_TRUE(running.wait_for("assistant"));
  server.application.drain();
  const HttpAnswer refused = server.post(kChat, hello());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json().at("error").at("code"), "draining");
  EXPECT_EQ(server.get("/health/ready").json().at("state"), "draining");
  EXPECT_EQ(server.get("/health/live").status, 200);
  server.server.close_listener();
  EXPECT_FALSE(server.server.drain(50ms)) << "one is still running";
  engine.hold(false);
  EXPECT_TRUE(server.server.drain(5000ms));
  EXPECT_TRUE(running.wait_for("[DONE]"));
}

TEST(ApplicationStatesTest, WhatADrainDoesNotWaitForEndsWithAnError) {
  HeldServer held;
  auto& [engine, server] = held;
  HttpCall running(server.port(), "POST", kChat, streamed());
  ASSERT_TRUE(running.wait_for("assistant"));
  HttpCall whole(server.port(), "POST", kChat, json::serialize(hello()));
  ASSERT_TRUE(within(5000ms, [&] { return engine.snapshot().scheduler.submitted == 2; }));
  server.application.drain();
  engine.stop();
  EXPECT_EQ(running.finish().events().back().at("error").at("message"), "the server is shutting down");
  EXPECT_EQ(whole.finish().status, 503);
}

}  // namespace
}  // namespace weir::test
