// A run is repeated from its log: the same steps, span by span, and the same tokens.
#include "engine/schedule_log.h"

#include <random>
#include <regex>

#include "tests/support/serving.h"

namespace weir::test {
namespace {

ServingOptions scarce() {
  ServingOptions options;
  options.sequences = 6;
  options.tokens = 640;
  options.anchors = 6;
  options.scheduler.target_step_ms = 2;  // so that clocks decide over chunks
  return options;
}

Request random_request(const Model& model, std::mt19937& random) {
  Request r;
  const size_t length = 1 + random() % 200;
  for (size_t i = 0; i < length; ++i) {
    r.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(model.spec.vocab)));
  }
  r.max_tokens = 1 + random() % 60;
  r.priority = static_cast<int32_t>(random() % 2);
  r.client = random() % 3;
  r.stop_tokens = {static_cast<int32_t>(random() % static_cast<uint32_t>(model.spec.vocab))};
  SamplingOptions& s = r.sampling;
  s.temperature = random() % 2 == 0 ? 0.f : 0.7f;
  s.seed = (uint64_t{random()} << 32) + random();
  s.top_k = static_cast<int32_t>(random() % 50);
  s.top_p = 0.9f;
  s.min_p = 0.01f;
  s.repetition_penalty = 1.1f;
  s.presence_penalty = 0.3f;
  s.frequency_penalty = 0.1f;
  s.logit_bias = {{3, -2.5f}, {7, 1.25f}};
  s.min_tokens = static_cast<int64_t>(random() % 3);
  s.top_logprobs = static_cast<int32_t>(random() % 3);
  return r;
}

// Without the times.
std::string spans_of(const Serving& serving) {
  return std::regex_replace(serving.trace.dump(), std::regex("\"(model|other)_ms\":[0-9.]+,"), "");
}

class ScheduleLogTest : public testing::TestWithParam<const char*> {};

TEST_P(ScheduleLogTest, ARandomRunIsRepeatedStepByStep) {
  const std::unique_ptr<Model> model = Model::load(fixture(GetParam()));
  std::string lines;
  ScheduleLog log([&](std::string_view line) { lines += line; });
  ServingOptions options = scarce();
  options.scheduler.log = &log;
  Serving first(*model, options);
  std::mt19937 random(11);
  std::vector<RequestId> ids;
  for (int steps = 0; ids.size() < 40 || !first.scheduler.idle(); ++steps) {
    ASSERT_LT(steps, 20000);
    if (ids.size() < 40 && random() % 3 == 0) ids.push_back(first.submit(random_request(*model, random)));
    if (!ids.empty() && random() % 50 == 0) first.scheduler.cancel(ids[random() % ids.size()]);
    if (random() % 30 == 0) first.scheduler.preempt_youngest();
    first.scheduler.step();
  }
  first.scheduler.check_idle();
  EXPECT_GT(first.scheduler.counters().preemptions, 3);
  EXPECT_GT(first.scheduler.counters().cancelled, 0);
  EXPECT_GT(first.scheduler.cache().counters().hits + first.scheduler.cache().counters().evicted_nodes, 0);

  options.scheduler.log = nullptr;
  options.scheduler.target_step_ms = 1e6;  // a clock that would decide otherwise
  Serving second(*model, options);
  EXPECT_GE(replay(lines, "log", second.scheduler), first.scheduler.counters().steps);
  second.scheduler.check_idle();
  EXPECT_EQ(spans_of(first), spans_of(second));
  for (const RequestId id : ids) {
    EXPECT_EQ(first.answer(id).tokens, second.answer(id).tokens) << "request " << id;
    EXPECT_EQ(first.answer(id).logprobs, second.answer(id).logprobs) << "request " << id;
    EXPECT_EQ(first.answer(id).end.reason, second.answer(id).end.reason) << "request " << id;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ScheduleLogTest, testing::Values("kimi_k3/k3-tiny", "hf/llama"),
                         [](const testing::TestParamInfo<const char*>& param) {
                           return param.index == 0 ? "k3" : "llama";
                         });

TEST(ScheduleLog, WhatIsNoLogIsRefusedByLine) {
  const std::unique_ptr<Model> model = Model::load(fixture("hf/llama"));
  Serving serving(*model, scarce());
  const auto expect_refused = [&](const std::string& text, const std::string& words) {
    try {
      replay(text, "run.log", serving.scheduler);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect_refused("{\"step\":1}\nnonsense\n", "run.log: line 2: not JSON");
  expect_refused("[]", "run.log: line 1: expected a JSON object");
  expect_refused("{\"stop\":1}", "expected submit, cancel, preempt or step");
  expect_refused("{\"step\":-1}", "field 'step'");
  expect_refused("{\"cancel\":\"x\"}", "field 'cancel'");
  std::string line;
  ScheduleLog log([&](std::string_view text) { line = text; });
  log.submitted(1, {.prompt = {static_cast<int32_t>(model->spec.vocab)}});
  expect_refused(line, "field 'submit'");
}

}  // namespace
}  // namespace weir::test
