// The application in front of real engines: tiny models behind HTTP.
#include "engine/service.h"

#include "tests/support/serving.h"
#include "tests/support/test_server.h"

namespace weir::test {
namespace {

using namespace std::chrono_literals;

class ApplicationEngineTest : public testing::Test {
 protected:
  explicit ApplicationEngineTest(const std::string& folder = "kimi_k3/k3-tiny")
      : model_(Model::load(fixture(folder))),
        text_(ModelText::of(*model_)),
        engine_(*model_, Serving::engine_options({.sequences = 8, .tokens = 2048})),
        service_(engine_, {}),
        served_{.text = &text_,
                .name = "tiny",
                .fingerprint = "weir-test",
                .vocab = model_->spec.vocab,
                .context = model_->spec.max_positions,
                .tokens = 2048} {
    server_.application.open(served_, service_);
  }
  ~ApplicationEngineTest() override { service_.stop(); }

  static json::object chat(json::object more = {}) {
    more["messages"] = {{{"role", "user"}, {"content", "Tell me a story of a fox and a well, please."}}};
    more["max_tokens"] = 24;
    return more;
  }
  json::array choices(const json::object& body) {
    return server_.post("/v1/chat/completions", body).json().at("choices").as_array();
  }

  std::unique_ptr<Model> model_;
  ModelText text_;
  Engine engine_;
  Service service_;
  openai::Served served_;
  TestServer server_;
};

TEST_F(ApplicationEngineTest, StreamsAreTheAnswer) {
  for (json::object body :
       {chat(), chat({{"temperature", 1}, {"seed", 5}, {"n", 3}, {"logprobs", true}, {"top_logprobs", 4}})}) {
    const HttpAnswer whole = server_.post("/v1/chat/completions", body);
    body["stream"] = true;
    expect_same_choices(server_.post("/v1/chat/completions", body), whole);
  }
  json::object body{{"prompt", {"One", "Two"}}, {"temperature", 1}, {"logprobs", 2}, {"max_tokens", 20}};
  const HttpAnswer whole = server_.post("/v1/completions", body);
  body["stream"] = true;
  expect_same_choices(server_.post("/v1/completions", body), whole);
}

TEST_F(ApplicationEngineTest, EqualSeedsGiveEqualAnswersWhateverElseRuns) {
  const json::object body = chat({{"temperature", 1}, {"seed", 7}});
  const json::array alone = choices(body);
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&, i] { choices(chat({{"temperature", 1}, {"seed", 100 + i}, {"n", 2}})); });
  }
  EXPECT_EQ(json::value(choices(body)), json::value(alone));
  for (std::thread& other : others) other.join();
  EXPECT_NE(json::value(choices(chat({{"temperature", 1}, {"seed", 8}}))), json::value(alone));
  const json::array two = choices(chat({{"temperature", 1}, {"seed", 7}, {"n", 2}}));
  EXPECT_EQ(two.at(0).at("message"), alone.at(0).at("message"));
}

TEST_F(ApplicationEngineTest, UsageCountsWhatWasCached) {
  json::object body = chat();
  body["messages"].as_array()[0].as_object()["content"] = std::string(400, 'a') + " and so on";
  const auto cached = [&] {
    const json::object usage = server_.post("/v1/chat/completions", body).json().at("usage").as_object();
    EXPECT_GT(usage.at("prompt_tokens").to_number<int64_t>(), 32);
    return usage.at("prompt_tokens_details").at("cached_tokens").to_number<int64_t>();
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_GE(cached(), 16);
  const std::string metrics = server_.get("/metrics").body;
  EXPECT_EQ(metrics.find("weir_cache_hit_tokens_total 0\n"), std::string::npos);
  EXPECT_EQ(metrics.find("weir_step_duration_seconds_count 0\n"), std::string::npos);
}

TEST_F(ApplicationEngineTest, AClientThatLeavesFreesItsPages) {
  json::object body = chat({{"stream", true}, {"ignore_eos", true}});
  body["max_tokens"] = 1500;
  for (int i = 0; i < 3; ++i) {
    HttpCall call(server_.port(), "POST", "/v1/chat/completions", json::serialize(body));
    ASSERT_TRUE(call.wait_for("assistant"));
    ASSERT_TRUE(within(5000ms, [&] { return service_.snapshot().running == 1; }));
    call.leave();
    ASSERT_TRUE(within(10000ms, [&] { return service_.snapshot().running == 0; }));
  }
  EXPECT_EQ(service_.snapshot().scheduler.cancelled, 3);
  service_.drain();
  service_.between_steps([](Scheduler& scheduler) { scheduler.check_idle(); });
}

TEST_F(ApplicationEngineTest, WhatNeverFitsIsRefusedWithNumbers) {
  json::object body = chat();
  body["max_tokens"] = 3000;  // within the context
  const HttpAnswer refused = server_.post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("pages of 16 tokens"), std::string::npos) << refused.body;
}

}  // namespace
}  // namespace weir::test
