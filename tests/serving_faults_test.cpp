// What goes wrong beside a request: no block when one is asked for, numbers that are not finite, a disk that is full,
// broken or lies, a process that is killed. None of it may change a token of a request that is answered.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "tests/support/equality.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

class ServingFaultsTest : public testing::TestWithParam<const char*> {
 protected:
  ServingFaultsTest() : model_(Model::load(fixture(GetParam()))), alone_(reference_engine(*model_, 512)) {
    for (const int64_t length : {50, 40, 60, 33, 130, 97}) {
      Request r{.prompt = random_tokens(length, model_->spec.vocab, test_seed() + static_cast<uint32_t>(length)),
                .max_tokens = 10};
      r.sampling.temperature = length % 2 == 0 ? 0.f : 0.8f;
      r.sampling.seed = 5;
      requests_.push_back(std::move(r));
    }
    for (const Request& r : requests_) expected_.push_back(reference(*alone_, r));
  }

  std::vector<RequestId> submit_all(Watched& serving) const {
    std::vector<RequestId> ids;
    for (size_t i = 0; i < requests_.size(); ++i) ids.push_back(serving.submit(requests_[i], expected_[i]));
    return ids;
  }
  // All requests one after the other: every one is right. Returns the tokens that came from the cache.
  int64_t serve_all(const ServingOptions& options) const {
    Watched serving(*model_, options);
    int64_t cached = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const RequestId id = serving.submit(requests_[i], expected_[i]);
      serving.run_watched();
      cached += serving.answer(id).end.usage.cached_tokens;
    }
    serving.expect_all_references();
    damaged_ = serving.scheduler.cache().counters().damaged;
    serving.expect_nothing_held();
    return cached;
  }
  static ServingOptions small_options() {
    ServingOptions options;
    options.scheduler.cache.all = true;
    return options;
  }
  BlockStore::Options disk(const TemporaryFolder& folder) const {
    return {.directory = folder.path() / "cache",
            .disk_bytes = int64_t{1} << 30,
            .identity = {1, 2},
            .warn = [this](std::string_view) { ++warnings_; }};
  }
  // A cache on disk with all that the requests leave.
  void fill(const TemporaryFolder& folder) const {
    BlockStore store(disk(folder));
    ServingOptions options = small_options();
    options.store = &store;
    serve_all(options);
    store.flush();
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> alone_;
  std::vector<Request> requests_;
  std::vector<Reference> expected_;
  mutable int64_t damaged_ = 0;
  mutable std::atomic<int> warnings_ = 0;
};

TEST_P(ServingFaultsTest, ABlockThatIsRefusedAtAnyCallChangesNothing) {
  int64_t refused = 0;
  const int pools = Engine(*model_, exact_options(16, 16)).pools().groups() + 1;
  for (int pool = 0; pool < pools; ++pool) {
    for (int64_t call = 0;; call += full_equality() ? 1 : 1 + call / 2) {
      ServingOptions options = small_options();
      options.scheduler.chunk_rows = 64;
      Watched serving(*model_, options);
      StatePools& state = serving.engine().pools();
      RawBlockPool& blocks = pool < state.groups() ? state.pages(pool) : state.anchors();
      blocks.refuse_after(call);
      submit_all(serving);
      serving.run_watched();
      serving.expect_all_references();
      const bool happened = !blocks.refusal_pending();
      serving.expect_nothing_held();
      ASSERT_FALSE(HasFailure()) << "pool " << pool << ", call " << call;
      if (!happened) break;
      ++refused;
    }
  }
  EXPECT_GT(refused, 5 * (pools - 1));
}

// The only request that runs and nothing to evict: it may end with an error, and leaves nothing behind.
TEST_P(ServingFaultsTest, ABlockThatIsRefusedToTheOnlyRequestLeavesNothingBehind) {
  for (const int64_t call : {0, 1, 3, 8}) {
    ServingOptions options = small_options();
    options.scheduler.cache.enabled = call % 2 == 0;
    Watched serving(*model_, options);
    serving.engine().pools().pages(0).refuse_after(call);
    const RequestId first = serving.Serving::submit(requests_[4]);
    serving.run_watched();
    EXPECT_TRUE(serving.answer(first).ended);
    if (serving.answer(first).end.reason != FinishReason::kError) {
      EXPECT_EQ(serving.answer(first).tokens, expected_[4].tokens);
    }
    serving.engine().pools().pages(0).refuse_after(-1);
    const RequestId second = serving.submit(requests_[4], expected_[4]);
    serving.run_watched();
    serving.expect_reference(second);
    serving.expect_nothing_held();
  }
}

// Makes one value of one row NaN, in the output of the op of this index.
class Poison final : public StepObserver {
 public:
  Poison(size_t op, int64_t row) : op_(op), row_(row) {}
  void after(const BoundOp&, Buffer output) override {
    if (seen_++ != op_) return;
    ASSERT_NE(output.data, nullptr);
    output.data[row_ * output.cols + 3] = std::numeric_limits<float>::quiet_NaN();
  }
  bool happened() const { return seen_ > op_; }

 private:
  size_t op_, seen_ = 0;
  int64_t row_;
};

TEST_P(ServingFaultsTest, NumbersThatAreNotFiniteEndOneRequestAlone) {
  const auto prompt = [&](size_t i) { return static_cast<int64_t>(requests_[i].prompt.size()); };
  for (const bool decoding : {false, true}) {
    ServingOptions options = small_options();
    options.scheduler.chunk_rows = 256;
    Watched serving(*model_, options);
    const RequestId before = serving.submit(requests_[0], expected_[0]);
    const RequestId victim = serving.Serving::submit(requests_[1]);
    const RequestId after = serving.submit(requests_[2], expected_[2]);
    if (decoding) {
      ASSERT_TRUE(serving.step());
      ASSERT_TRUE(serving.step());
    }
    Poison poison(0, decoding ? 1 : prompt(0) + 10);  // of the rows of a step, one that is the victim's
    ASSERT_TRUE(serving.step(&poison));
    EXPECT_TRUE(poison.happened());
    const Answer& answer = serving.answer(victim);
    ASSERT_TRUE(answer.ended) << "the victim was not met";
    EXPECT_EQ(answer.end.reason, FinishReason::kError);
    EXPECT_NE(answer.end.error.find("a logit is not finite"), std::string::npos) << answer.end.error;
    EXPECT_EQ(answer.tokens.size(), decoding ? 2u : 0u);
    serving.run_watched();
    serving.expect_reference(before);
    serving.expect_reference(after);
    // Nothing of the step is in the cache: neither its rows nor what follows from them.
    const int64_t good = decoding ? prompt(1) / kPagePositions * kPagePositions : 0;
    EXPECT_LE(serving.scheduler.cache().peek(requests_[1].prompt).position, good);
    const RequestId again = serving.submit(requests_[1], expected_[1]);
    serving.run_watched();
    EXPECT_LE(serving.answer(again).end.usage.cached_tokens, good);
    serving.expect_reference(again);
    serving.expect_no_difference();
    EXPECT_EQ(serving.scheduler.counters().failed, 1);
    serving.expect_nothing_held();
  }
}

TEST_P(ServingFaultsTest, AFullOrBrokenDiskIsOnlyACacheThatIsNotThere) {
  int64_t budget = 0;  // bytes that the disk still takes
  const auto write = [&](int error) {
    return [&budget, error](int file, std::span<const std::byte> bytes) -> ssize_t {
      const auto take = std::min<int64_t>(budget, static_cast<int64_t>(bytes.size()));
      budget -= take;
      if (take > 0) return ::write(file, bytes.data(), static_cast<size_t>(take));
      errno = error;
      return -1;
    };
  };
  for (const int error : {ENOSPC, EIO}) {
    const TemporaryFolder folder;
    budget = 50000;
    BlockStore::Options store_options = disk(folder);
    store_options.calls.write = write(error);
    ServingOptions options = small_options();
    {
      BlockStore store(store_options);
      options.store = &store;
      serve_all(options);
      store.flush();
      EXPECT_GT(store.counters().failed_writes, 0);
      EXPECT_EQ(budget, 0);
    }
    BlockStore store(disk(folder));  // what was written is whole
    options.store = &store;
    serve_all(options);
    EXPECT_EQ(damaged_, 0);
  }
  EXPECT_EQ(warnings_, 2) << "one line each time";
}

TEST_P(ServingFaultsTest, AReadErrorIsAMiss) {
  const TemporaryFolder folder;
  fill(folder);
  ServingOptions options = small_options();
  std::mt19937 random(test_seed());
  int64_t failed = 0;
  BlockStore::Options store_options = disk(folder);
  bool broken = false;
  store_options.calls.read = [&](int file, std::span<std::byte> bytes) -> ssize_t {
    if (broken && random() % 8 == 0) {
      ++failed;
      errno = EIO;
      return -1;
    }
    return ::read(file, bytes.data(), bytes.size());
  };
  BlockStore store(store_options);
  broken = true;
  options.store = &store;
  const int64_t cached = serve_all(options);
  EXPECT_GT(failed, 0);
  EXPECT_GT(cached, 0);
  EXPECT_GT(store.counters().failed_reads, 0);
}

TEST_P(ServingFaultsTest, DamagedFilesAreMisses) {
  const TemporaryFolder folder;
  fill(folder);
  ServingOptions options = small_options();
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() / "cache")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  ASSERT_GT(files.size(), 20u);
  std::ranges::sort(files);
  std::mt19937 random(test_seed());
  std::shuffle(files.begin(), files.end(), random);
  BlockStore store(disk(folder));  // has seen them whole
  for (size_t i = 0; i < files.size() / 2; ++i) {
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(files[i]));
    if (i % 3 == 0) std::filesystem::resize_file(files[i], static_cast<uintmax_t>(bytes / 2));
    if (i % 3 == 1) std::filesystem::remove(files[i]);
    if (i % 3 == 2) {
      std::fstream file(files[i], std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(bytes - 1 - static_cast<int64_t>(random() % 64));
      const auto at = file.tellg();
      const char changed = static_cast<char>(file.get() ^ 1);
      file.seekp(at);
      file.put(changed);
    }
  }
  options.store = &store;
  serve_all(options);
  EXPECT_GT(damaged_, 0);
  EXPECT_GT(store.counters().dropped_damaged, 0);
  store.flush();
  BlockStore again(disk(folder));
  options.store = &again;
  EXPECT_GT(serve_all(options), 0);  // what nobody has read yet may still be damaged
}

TEST_P(ServingFaultsTest, AProcessThatIsKilledWhileItWritesLeavesAUsableCache) {
  const TemporaryFolder folder;
  ServingOptions options = small_options();
  int64_t cached = 0;
  for (const int64_t writes : {1, 2, 7, 14, 19}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      BlockStore::Options store_options = disk(folder);
      int64_t left = writes;
      store_options.calls.write = [&left](int file, std::span<const std::byte> bytes) -> ssize_t {
        if (--left > 0) return ::write(file, bytes.data(), bytes.size());
        [[maybe_unused]] const ssize_t half = ::write(file, bytes.data(), bytes.size() / 2);
        kill(getpid(), SIGKILL);
        return -1;
      };
      BlockStore store(store_options);
      options.store = &store;
      serve_all(options);
      store.flush();
      _exit(left > 0 ? 3 : 4);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "write " << writes << ", status " << status;
    BlockStore store(disk(folder));
    EXPECT_GE(store.counters().dropped_leftover, 1);
    EXPECT_EQ(store.counters().dropped_damaged, 0);
    ServingOptions with_store = options;
    with_store.store = &store;
    Watched serving(*model_, with_store);
    const RequestId id = serving.submit(requests_[0], expected_[0]);
    serving.run_watched();
    serving.expect_all_references();
    cached += serving.answer(id).end.usage.cached_tokens;
    EXPECT_EQ(serving.scheduler.cache().counters().damaged, 0);
  }
  EXPECT_GT(cached, 0);
}

// Every page is held by two restore points, or by one and the request: no point gives a page back by itself.
TEST(ServingWindows, RestorePointsThatShareTheirPagesGiveThemUp) {
  ModelFiles files = ModelFiles::read(fixture("hf/qwen2"));
  boost::json::object& config = files.text_config();
  config["use_sliding_window"] = true;
  config["sliding_window"] = 32;
  config["max_window_layers"] = 0;
  config.erase("layer_types");
  const TemporaryFolder folder;
  files.write(folder.path());
  const std::unique_ptr<Model> model = Model::load(folder.path());
  ServingOptions options;
  options.sequences = 1;
  options.rows = 32;
  options.tokens = 160;
  options.scheduler.chunk_rows = 32;
  options.scheduler.cache.all = true;
  Watched serving(*model, options);
  StatePools& pools = serving.engine().pools();
  ASSERT_EQ(pools.groups(), 1);
  ASSERT_EQ(pools.window(0), 32);
  Request r{.prompt = random_tokens(130, model->spec.vocab, test_seed()), .max_tokens = 1};
  serving.complete(r);
  EXPECT_GE(serving.scheduler.cache().point_count(), 8);
  r.max_tokens = 100;
  const std::unique_ptr<Engine> alone = reference_engine(*model, 256);
  const Reference expected = reference(*alone, r);
  const RequestId id = serving.submit(r, expected);
  serving.run_watched();
  EXPECT_EQ(serving.answer(id).end.usage.cached_tokens, 128);
  EXPECT_GT(serving.scheduler.cache().counters().evicted_points, 0);
  serving.expect_all_references();
  serving.expect_nothing_held();
}

INSTANTIATE_TEST_SUITE_P(Models, ServingFaultsTest,
                         testing::Values("hf/llama", "hf/kimi_linear", "kimi_k3/k3-tiny", "hf/gpt_oss"),
                         [](const testing::TestParamInfo<const char*>& param) { return test_name(param.param); });

}  // namespace
}  // namespace weir::test
