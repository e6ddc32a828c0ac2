// The scheduler and the prefix cache: whatever happens to a request, its tokens are those it has alone.
#include "tests/support/serving.h"

#include <random>

namespace weir::test {
namespace {

struct ServedModel {
  const char* folder;
  bool points;  // linear layers or windows: hits need restore points
};

class ServingTest : public testing::TestWithParam<ServedModel> {
 protected:
  ServingTest() : model_(Model::load(fixture(GetParam().folder))) {}
  std::vector<int32_t> random_tokens(int64_t n, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& t : tokens) t = static_cast<int32_t>(random() % static_cast<uint32_t>(model_->spec.vocab));
    return tokens;
  }
  Request request(std::vector<int32_t> prompt, int64_t max_tokens, float temperature = 0) const {
    Request r{.prompt = std::move(prompt), .max_tokens = max_tokens};
    r.sampling.temperature = temperature;
    r.sampling.seed = 7;
    return r;
  }
  std::unique_ptr<Model> model_;
};

TEST_P(ServingTest, ABatchOfUnequalRequestsGivesEachItsOwnTokens) {
  ServingOptions options;
  options.scheduler.cache.enabled = false;
  Serving serving(*model_, options);
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(request(random_tokens(1 + i * 13, static_cast<uint32_t>(i)), 10 + i, i % 2 == 0 ? 0.f : 0.8f));
    ids.push_back(serving.submit(requests.back()));
  }
  serving.run();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(serving.answer(ids[i]).tokens, alone(*model_, requests[i])) << i;
    EXPECT_EQ(serving.answer(ids[i]).end.usage.hit, HitReason::kDisabled);
  }
  EXPECT_EQ(serving.scheduler.counters().most_sequences_of_a_step, 8);
  serving.expect_nothing_held();
}

TEST_P(ServingTest, TheSecondTurnStartsWhereTheFirstEnded) {
  Serving serving(*model_, {});
  Request first = request(random_tokens(200, 1), 40);
  const std::vector<int32_t> answer = serving.complete(first);
  EXPECT_EQ(answer, alone(*model_, first));
  Request second = first;
  second.prompt.insert(second.prompt.end(), answer.begin(), answer.end());
  const std::vector<int32_t> more = random_tokens(30, 2);
  second.prompt.insert(second.prompt.end(), more.begin(), more.end());
  const RequestId id = serving.submit(second);
  serving.run();
  EXPECT_EQ(serving.answer(id).tokens, alone(*model_, second));
  // The answer's last token was never computed, and an anchor is made by the row after it.
  EXPECT_EQ(serving.answer(id).end.usage.cached_tokens, (200 + 40 - 1 - 1) / 16 * 16);
  serving.expect_nothing_held();
}

TEST_P(ServingTest, HitsAtEveryMultipleOf16GiveTheSameTokens) {
  ServingOptions options;
  options.scheduler.cache.all = true;
  Serving serving(*model_, options);
  const std::vector<int32_t> prompt = random_tokens(130, 3);
  serving.complete(request(prompt, 1));
  for (int64_t shared = 0; shared <= 128; shared += 16) {
    for (const int64_t tail : {1, 15, 16, 17}) {
      Request r = request({prompt.begin(), prompt.begin() + shared}, 6, 0.5f);
      const std::vector<int32_t> own = random_tokens(tail, static_cast<uint32_t>(1000 + shared + tail));
      r.prompt.insert(r.prompt.end(), own.begin(), own.end());
      const RequestId id = serving.submit(r);
      serving.run();
      EXPECT_EQ(serving.answer(id).tokens, alone(*model_, r)) << shared << " and " << tail;
      EXPECT_GE(serving.answer(id).end.usage.cached_tokens, std::min<int64_t>(shared, 128)) << tail;
    }
  }
  serving.expect_nothing_held();
}

TEST_P(ServingTest, WhoPartsFirstPaysAndTheNextOnePaysItsTail) {
  ServingOptions options;
  options.scheduler.cache.spacing = 1024;
  Serving serving(*model_, options);
  const std::vector<int32_t> prompt = random_tokens(400, 4);
  serving.complete(request(prompt, 4));
  int64_t cached[2];
  for (int i = 0; i < 2; ++i) {
    Request r = request({prompt.begin(), prompt.begin() + 200}, 4);
    const std::vector<int32_t> own = random_tokens(50, static_cast<uint32_t>(50 + i));
    r.prompt.insert(r.prompt.end(), own.begin(), own.end());
    const RequestId id = serving.submit(r);
    serving.run();
    EXPECT_EQ(serving.answer(id).tokens, alone(*model_, r));
    cached[i] = serving.answer(id).end.usage.cached_tokens;
    EXPECT_EQ(serving.answer(id).end.usage.hit,
              i == 0 && GetParam().points ? HitReason::kNoAnchor : HitReason::kDiverged);
  }
  EXPECT_EQ(cached[0], GetParam().points ? 0 : 192);
  EXPECT_EQ(cached[1], 192);
}

TEST_P(ServingTest, RequestsThatShareAPromptComputeItOnce) {
  Serving serving(*model_, {});
  const std::vector<int32_t> prompt = random_tokens(300, 5);
  std::vector<RequestId> ids;
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request r = request({prompt.begin(), prompt.begin() + 290}, 5, 0.9f);
    r.sampling.seed = static_cast<uint64_t>(i);
    if (i % 2 == 1) r.prompt.push_back(i);
    requests.push_back(r);
    ids.push_back(serving.submit(r));
  }
  serving.run();
  int64_t computed = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(serving.answer(ids[i]).tokens, alone(*model_, requests[i])) << i;
    const RequestUsage& usage = serving.answer(ids[i]).end.usage;
    computed += usage.prompt_tokens - usage.cached_tokens;
  }
  EXPECT_LE(computed, 290 + 5 * 19);
  EXPECT_EQ(serving.scheduler.counters().prompt_rows, computed);
  EXPECT_GE(serving.scheduler.counters().waits_for_prefix, 5);
}

TEST_P(ServingTest, PreemptedAtRandomTokensStayTheSame) {
  for (const bool cache : {true, false}) {
    ServingOptions options;
    options.scheduler.cache.enabled = cache;
    options.scheduler.chunk_rows = 48;
    Serving serving(*model_, options);
    std::vector<Request> requests;
    std::vector<RequestId> ids;
    for (int i = 0; i < 10; ++i) {
      requests.push_back(
          request(random_tokens(5 + i * 17, static_cast<uint32_t>(100 + i)), 30, i % 2 == 0 ? 0.f : 1.f));
      ids.push_back(serving.submit(requests.back()));
    }
    std::mt19937 random(6);
    while (serving.scheduler.step()) {
      if (random() % 4 == 0) serving.scheduler.preempt_youngest();
    }
    int64_t preempted = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(serving.answer(ids[i]).tokens, alone(*model_, requests[i])) << i;
      preempted += serving.answer(ids[i]).end.usage.preemptions;
    }
    EXPECT_GT(preempted, 10);
    serving.expect_nothing_held();
  }
}

TEST_P(ServingTest, WithPagesForATenthAllFinish) {
  ServingOptions options;
  options.sequences = 16;
  options.tokens = 480;
  options.anchors = 4;
  Serving serving(*model_, options);
  std::vector<Request> requests;
  std::vector<RequestId> ids;
  std::mt19937 random(8);
  for (int i = 0; i < 40; ++i) {
    requests.push_back(request(random_tokens(1 + random() % 100, static_cast<uint32_t>(i)), 100 + random() % 100));
    ids.push_back(serving.submit(requests.back()));
  }
  serving.run();
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(serving.answer(ids[i]).tokens, alone(*model_, requests[i])) << i;
  }
  EXPECT_GT(serving.scheduler.counters().preemptions, 0);
  EXPECT_GT(serving.scheduler.cache().counters().evicted_nodes, 0);
  serving.expect_nothing_held();
}

TEST_P(ServingTest, BlocksComeBackFromHostMemory) {
  BlockStore store({.host_bytes = int64_t{1} << 30, .identity = {1, 2}});
  ServingOptions options;
  options.sequences = 2;
  options.tokens = 512;
  options.anchors = 2;
  options.store = &store;
  Serving serving(*model_, options);
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(request(random_tokens(210, static_cast<uint32_t>(20 + i)), 20));
  for (const Request& r : requests) EXPECT_EQ(serving.complete(r), alone(*model_, r));
  int64_t cached = 0;
  for (const Request& r : requests) {
    const RequestId id = serving.submit(r);
    serving.run();
    EXPECT_EQ(serving.answer(id).tokens, alone(*model_, r));
    cached += serving.answer(id).end.usage.cached_tokens;
  }
  EXPECT_EQ(cached, 6 * 208);
  EXPECT_GT(serving.scheduler.cache().counters().restored_nodes, 20);
  serving.expect_nothing_held();
}

TEST_P(ServingTest, CancelledRequestsLeaveNothing) {
  Serving serving(*model_, {});
  std::mt19937 random(9);
  std::vector<RequestId> live;
  for (int step = 0; step < 300; ++step) {
    if (random() % 3 == 0) live.push_back(serving.submit(request(random_tokens(1 + random() % 150, random()), 40)));
    if (!live.empty() && random() % 4 == 0) {
      const size_t i = random() % live.size();
      const bool was_live = !serving.answer(live[i]).ended;
      EXPECT_EQ(serving.scheduler.cancel(live[i]), was_live);
      EXPECT_TRUE(serving.answer(live[i]).ended);
    }
    serving.scheduler.step();
    serving.scheduler.cache().check();
  }
  serving.run();
  EXPECT_GT(serving.scheduler.counters().cancelled, 10);
  serving.expect_nothing_held();
}

TEST_P(ServingTest, WhatCanNeverFitIsRefusedWithNumbers) {
  ServingOptions options;
  options.tokens = 256;
  Serving serving(*model_, options);
  const std::string why = serving.scheduler.submit(1, request(random_tokens(200, 1), 400));
  EXPECT_NE(why.find("the prompt's 200 tokens and 400 new ones need 38 pages of 16 tokens"), std::string::npos) << why;
  EXPECT_TRUE(serving.scheduler.idle());
}

TEST_P(ServingTest, BlocksBeyondTheMemoryAreRefusedAtOnce) {
  EngineOptions options = Serving::engine_options({});
  options.max_tokens = int64_t{1} << 28;
  EXPECT_NO_THROW(Engine(*model_, options));  // blocks that nobody takes cost nothing
  options.all_blocks = true;
  try {
    Engine engine(*model_, options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("lower --max-tokens"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ServingTest,
                         testing::Values(ServedModel{"hf/llama", false}, ServedModel{"hf/kimi_linear", true},
                                         ServedModel{"hf/gpt_oss", true}, ServedModel{"hf/qwen3_next", true},
                                         ServedModel{"hf/glm_moe_dsa", false}, ServedModel{"hf/gemma4_text", true},
                                         ServedModel{"kimi_k3/k3-tiny", true}),
                         [](const testing::TestParamInfo<ServedModel>& param) {
                           std::string name = param.param.folder;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace weir::test
