// Many requests: random lives of thousands of them, pools that hold a tenth of what they need, schedules that repeat.
#include <regex>

#include "tests/support/equality.h"

namespace weir::test {
namespace {

class ServingLoadTest : public testing::TestWithParam<const char*> {
 protected:
  ServingLoadTest() : model_(Model::load(fixture(GetParam()))) {}

  // Requests of a few families of shared beginnings, and what they give alone.
  void make_requests(int64_t count, int64_t families, int64_t longest, int64_t longest_answer) {
    std::mt19937 random(test_seed());
    const int64_t vocab = model_->spec.vocab;
    std::vector<std::vector<int32_t>> beginnings;
    for (int64_t f = 0; f < families; ++f) beginnings.push_back(random_tokens(longest, vocab, random()));
    const std::unique_ptr<Engine> alone = reference_engine(*model_, longest + longest_answer + 16);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<int32_t>& beginning = beginnings[static_cast<size_t>(below(families))];
      Request r;
      const int64_t length = 1 + below(longest), common = below(length + 1);
      r.prompt.assign(beginning.begin(), beginning.begin() + common);
      const std::vector<int32_t> own = random_tokens(length - common, vocab, random());
      r.prompt.insert(r.prompt.end(), own.begin(), own.end());
      r.max_tokens = 1 + below(longest_answer);
      r.sampling.temperature = random() % 2 == 0 ? 0.f : 1.f;
      r.sampling.seed = random();
      if (random() % 4 == 0) r.stop_tokens = random_tokens(8, vocab, random());
      r.priority = static_cast<int32_t>(random() % 3);
      r.client = random() % 4;
      expected_.push_back(reference(*alone, r));
      requests_.push_back(std::move(r));
    }
  }

  std::unique_ptr<Model> model_;
  std::vector<Request> requests_;
  std::vector<Reference> expected_;
};

TEST_P(ServingLoadTest, AccountingIsExactAfterThousandsOfRandomLives) {
  const int64_t count = full_equality() ? 10000 : 2000;
  make_requests(full_equality() ? 256 : 64, 6, 60, 6);
  ServingOptions options;
  options.tokens = 400;
  options.anchors = 12;
  options.scheduler.chunk_rows = 48;
  options.scheduler.cache.spacing = 32;
  const std::unique_ptr<Engine> like = reference_engine(*model_, 16);
  const int64_t block = kPagePositions * like->pools().kept_bytes_per_token() + like->pools().restore_point_bytes();
  BlockStore store({.host_bytes = 50 * block, .identity = {1, 2}});
  options.store = &store;
  Watched serving(*model_, options);
  std::mt19937 random(test_seed() + 1);
  std::vector<std::pair<RequestId, size_t>> live;
  int64_t submitted = 0, cancelled = 0;
  while (submitted < count || !serving.scheduler.idle()) {
    while (submitted < count && serving.scheduler.waiting() < 12 && random() % 4 != 0) {
      const size_t i = random() % requests_.size();
      live.push_back({serving.submit(requests_[i], expected_[i]), i});
      ++submitted;
    }
    if (!live.empty() && random() % 16 == 0 && serving.scheduler.cancel(live[random() % live.size()].first)) {
      ++cancelled;
    }
    if (random() % 12 == 0) serving.scheduler.preempt_youngest();
    serving.step();
    std::erase_if(live, [&](const auto& entry) {
      const Answer& answer = serving.answer(entry.first);
      if (!answer.ended) return false;
      const std::vector<int32_t>& right = expected_[entry.second].tokens;
      if (answer.end.reason == FinishReason::kCancelled) {
        EXPECT_TRUE(std::ranges::equal(answer.tokens, std::span(right).first(answer.tokens.size())));
      } else {
        serving.expect_reference(entry.first);
      }
      return true;
    });
    if (random() % 32 == 0) serving.scheduler.cache().check();
    ASSERT_FALSE(HasFailure()) << "after " << submitted << " requests";
  }
  EXPECT_TRUE(live.empty());
  serving.expect_no_difference();
  serving.scheduler.check_idle();
  const Scheduler::Counters& counters = serving.scheduler.counters();
  EXPECT_EQ(counters.submitted, count);
  EXPECT_EQ(counters.cancelled, cancelled);
  EXPECT_EQ(counters.finished, count - cancelled);
  EXPECT_EQ(counters.failed, 0);
  EXPECT_GT(cancelled, count / 200);
  EXPECT_GT(counters.preemptions, count / 200);
  EXPECT_GT(counters.waits_for_prefix, 0);
  const PrefixCache::Counters& cache = serving.scheduler.cache().counters();
  EXPECT_GT(cache.hits, count / 4);
  EXPECT_GT(cache.evicted_nodes, count / 4);
  EXPECT_GT(cache.restored_nodes, 0);
  EXPECT_GT(store.counters().evicted_host, 0);
  serving.expect_nothing_held();
}

// Nothing but the calls decides what a schedule does, where the rows of a step do not depend on the clock.
TEST_P(ServingLoadTest, AScheduleRepeatsExactly) {
  make_requests(40, 4, 90, 12);
  std::string first;
  for (const int threads : {1, 2}) {
    BlockStore store({.host_bytes = int64_t{256} << 10, .identity = {1, 2}});
    ServingOptions options;
    options.tokens = 500;
    options.anchors = 10;
    options.threads = threads;
    options.scheduler.chunk_rows = 40;
    options.store = &store;
    Serving serving(*model_, options);
    std::mt19937 random(test_seed() + 2);
    std::vector<RequestId> ids;
    int64_t steps = 0;
    for (size_t next = 0; next < requests_.size() || !serving.scheduler.idle(); ++steps) {
      if (next < requests_.size() && random() % 3 == 0) ids.push_back(serving.submit(requests_[next++]));
      if (!ids.empty() && random() % 8 == 0) {  // one of the newest: they still live
        serving.scheduler.cancel(ids[ids.size() - 1 - random() % std::min<size_t>(ids.size(), 4)]);
      }
      if (random() % 10 == 0) serving.scheduler.preempt_youngest();
      serving.scheduler.step();
    }
    EXPECT_GT(serving.scheduler.counters().preemptions, 3);
    EXPECT_GT(serving.scheduler.counters().cancelled, 1);
    EXPECT_GT(serving.scheduler.cache().counters().evicted_nodes, 3);
    const std::string dump = std::regex_replace(serving.trace.dump(), std::regex("\"[a-z]+_ms\":[0-9.]+,"), "");
    EXPECT_EQ(std::ranges::count(dump, '\n'), serving.trace.recorded());
    EXPECT_EQ(dump.find("_ms"), std::string::npos);
    if (first.empty()) first = dump;
    EXPECT_EQ(dump, first);
  }
}

TEST_P(ServingLoadTest, WithPagesForATenthEveryRequestFinishes) {
  const std::string folder = GetParam();
  const bool wanted = folder == "hf/llama" || folder == "kimi_k3/k3-tiny";
  if (!wanted) GTEST_SKIP() << "one plain model and K3 are enough";
  const int64_t count = full_equality() ? 1024 : 64, longest = full_equality() ? 4000 : 200;
  ASSERT_GE(model_->spec.max_positions, longest + 24);
  std::mt19937 random(test_seed() + 3);
  const std::unique_ptr<Engine> alone = reference_engine(*model_, longest + 40);
  int64_t tokens = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = 16 + static_cast<int64_t>(random() % static_cast<uint64_t>(longest - 15));
    Request r{.prompt = random_tokens(length, model_->spec.vocab, random()),
              .max_tokens = 8 + static_cast<int64_t>(random() % 17)};
    r.sampling.temperature = i % 2 == 0 ? 0.f : 0.7f;
    r.sampling.seed = random();
    tokens += length + r.max_tokens;
    expected_.push_back(reference(*alone, r));
    requests_.push_back(std::move(r));
  }
  ServingOptions options;
  options.sequences = 64;
  options.rows = 512;
  options.tokens = std::max(tokens / 10, longest + 40);
  options.scheduler.chunk_rows = 448;
  Watched serving(*model_, options);
  std::vector<RequestId> ids;
  for (size_t i = 0; i < requests_.size(); ++i) ids.push_back(serving.submit(requests_[i], expected_[i]));
  serving.run_watched();
  serving.expect_all_references();
  EXPECT_EQ(serving.scheduler.counters().finished, count);
  EXPECT_EQ(serving.scheduler.counters().failed, 0);
  EXPECT_LT(serving.scheduler.counters().most_sequences_of_a_step, count / 2) << "there was room for all";
  EXPECT_GT(serving.scheduler.cache().counters().evicted_nodes, 0);
  std::printf("%s: %lld steps, %lld preemptions, %lld rows computed for %lld tokens\n", GetParam(),
              static_cast<long long>(serving.scheduler.counters().steps),
              static_cast<long long>(serving.scheduler.counters().preemptions),
              static_cast<long long>(serving.scheduler.counters().rows), static_cast<long long>(tokens));
  serving.expect_nothing_held();
}

INSTANTIATE_TEST_SUITE_P(Models, ServingLoadTest,
                         testing::Values("hf/llama", "hf/kimi_linear", "kimi_k3/k3-tiny", "hf/gpt_oss"),
                         [](const testing::TestParamInfo<const char*>& param) { return test_name(param.param); });

}  // namespace
}  // namespace weir::test
