// The engine behind its queue: many threads submit, cancel and watch; every stream ends exactly once.
#include "engine/service.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "tests/support/serving.h"

namespace weir::test {
namespace {

class Stream final : public TokenStream {
 public:
  void on_token(const SampledToken& token) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "a token after the end";
    tokens_.push_back(token.id);
  }
  void on_end(const RequestEnd& end) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "ended twice";
    ended_ = true;
    end_ = end;
    done_.notify_all();
  }
  RequestEnd wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return ended_; });
    return end_;
  }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<int32_t> tokens_;
  bool ended_ = false;
  RequestEnd end_;
};

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() : model_(Model::load(fixture("hf/kimi_linear"))) {
    options_.sequences = 8;
    options_.tokens = 1024;
  }
  Request request(uint32_t seed, int64_t tokens) const {
    Request r{.prompt = {}, .max_tokens = tokens};
    for (uint32_t i = 0; i < 5 + seed % 40; ++i) r.prompt.push_back(static_cast<int32_t>((seed * 31 + i * 7) % 300));
    return r;
  }
  std::unique_ptr<Model> model_;
  ServingOptions options_;
};

TEST_F(ServiceTest, ThreadsThatSubmitAndCancelAtOnceEachGetTheirOwn) {
  Engine engine(*model_, Serving::engine_options(options_));
  Service service(engine, {});
  std::atomic<int> finished{0}, cancelled{0};
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      for (uint32_t i = 0; i < 12; ++i) {
        const Request r = request(c * 100 + i, 20);
        const auto stream = std::make_shared<Stream>();
        RequestId id = 0;
        ASSERT_FALSE(service.submit(r, stream, id));
        if (random() % 3 == 0) service.cancel(id);
        const RequestEnd end = stream->wait();
        const std::vector<int32_t> found = stream->tokens();
        if (end.reason == FinishReason::kCancelled) {
          ++cancelled;
          EXPECT_LT(found.size(), 20u);
        } else {
          ++finished;
          EXPECT_EQ(end.reason, FinishReason::kLength);
          EXPECT_EQ(found, alone(*model_, r)) << c << " " << i;
        }
        service.snapshot();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(finished + cancelled, 48);
  EXPECT_GT(finished, 10);
  service.drain();
  service.between_steps([](Scheduler& scheduler) { scheduler.check_idle(); });
  const EngineSnapshot snapshot = service.snapshot();
  EXPECT_EQ(snapshot.scheduler.submitted, 48);
  EXPECT_EQ(snapshot.running + snapshot.waiting, 0);
  EXPECT_NE(service.trace().find("\"spans\":[["), std::string::npos);
}

TEST_F(ServiceTest, WhatCanNeverFitIsRefusedBeforeTheQueueAndNothingComesAfterADrain) {
  Engine engine(*model_, Serving::engine_options(options_));
  Service service(engine, {});
  RequestId id = 0;
  const auto long_one = service.submit(request(1, 1200), std::make_shared<Stream>(), id);
  ASSERT_TRUE(long_one);
  EXPECT_EQ(long_one->kind, SubmitRefusal::Kind::kNeverFits);
  EXPECT_NE(long_one->why.find("pages of 16 tokens"), std::string::npos);
  Request wrong = request(1, 5);
  wrong.sampling.top_p = 2;
  EXPECT_NE(service.submit(wrong, std::make_shared<Stream>(), id).value().why.find("top_p"), std::string::npos);
  const auto stream = std::make_shared<Stream>();
  ASSERT_FALSE(service.submit(request(2, 30), stream, id));
  service.drain();
  EXPECT_EQ(stream->wait().reason, FinishReason::kLength) << "a drain lets running requests end";
  EXPECT_EQ(service.submit(request(3, 5), std::make_shared<Stream>(), id).value().kind, SubmitRefusal::Kind::kStopping);
}

TEST_F(ServiceTest, AFullQueueRefusesUntilSomethingEnds) {
  Engine engine(*model_, Serving::engine_options(options_));
  Service service(engine, {.max_waiting = 2});
  std::vector<std::shared_ptr<Stream>> streams;
  RequestId first = 0, id = 0;
  for (uint32_t i = 0; i < 10; ++i) {
    streams.push_back(std::make_shared<Stream>());
    ASSERT_FALSE(service.submit(request(i, 900), streams.back(), i == 0 ? first : id));
  }
  EXPECT_EQ(service.submit(request(10, 5), std::make_shared<Stream>(), id).value().kind,
            SubmitRefusal::Kind::kQueueFull);
  service.cancel(first);
  streams[0]->wait();
  EXPECT_FALSE(service.submit(request(10, 5), std::make_shared<Stream>(), id));
}

TEST_F(ServiceTest, TheLastStepsCanBeSeenWithoutWaitingForOne) {
  Engine engine(*model_, Serving::engine_options(options_));
  Service service(engine, {});
  EXPECT_TRUE(service.steps_since(-1, 256).empty());
  const auto stream = std::make_shared<Stream>();
  RequestId id = 0;
  ASSERT_FALSE(service.submit(request(2, 30), stream, id));
  service.drain();
  const std::vector<StepRecord> steps = service.steps_since(-1, 256);
  ASSERT_EQ(static_cast<int64_t>(steps.size()), service.snapshot().scheduler.steps);
  EXPECT_EQ(steps.front().step, 0);
  ASSERT_EQ(steps.front().spans.size(), 1u);
  EXPECT_EQ(steps.front().spans[0].request, id);
  EXPECT_EQ(steps.back().spans[0].rows, 1);
  EXPECT_EQ(service.steps_since(steps.back().step - 3, 256).size(), 3u);
  EXPECT_EQ(service.steps_since(-1, 5).front().step, steps.back().step - 4);
  EXPECT_EQ(service.snapshot().step_seconds.count(), static_cast<int64_t>(steps.size()));
}

TEST_F(ServiceTest, AStopEndsEveryStream) {
  Engine engine(*model_, Serving::engine_options(options_));
  std::vector<std::shared_ptr<Stream>> streams;
  {
    Service service(engine, {});
    for (uint32_t i = 0; i < 12; ++i) {
      RequestId id = 0;
      streams.push_back(std::make_shared<Stream>());
      ASSERT_FALSE(service.submit(request(i, 900), streams.back(), id));
    }
    service.stop();
  }
  for (const auto& stream : streams) EXPECT_EQ(stream->wait().reason, FinishReason::kCancelled);
}

TEST_F(ServiceTest, AnEngineThatDiesEndsAllWithItsErrorAndSaysSo) {
  Engine engine(*model_, Serving::engine_options(options_));
  std::mutex mutex;
  std::string died;
  Service service(engine, {.died = [&](const std::string& why) {
                    const std::lock_guard lock(mutex);
                    died = why;
                  }});
  const auto stream = std::make_shared<Stream>();
  RequestId id = 0;
  ASSERT_FALSE(service.submit(request(1, 900), stream, id));
  service.between_steps([](Scheduler&) { throw Error("injected"); });
  const RequestEnd end = stream->wait();
  EXPECT_EQ(end.reason, FinishReason::kError);
  EXPECT_EQ(end.error, "injected");
  EXPECT_FALSE(service.alive());
  service.stop();
  const std::lock_guard lock(mutex);
  EXPECT_EQ(died, "injected");
  EXPECT_EQ(service.submit(request(1, 5), std::make_shared<Stream>(), id).value().kind, SubmitRefusal::Kind::kDead);
}

}  // namespace
}  // namespace weir::test
