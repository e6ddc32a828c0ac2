// One table: however a request came to be computed, its tokens and the logits of its rows have the bits they have
// alone. Every cell proves by counters that what its name says has happened. By default a quarter of the cells of each
// tiny model, another quarter for each; with WEIR_EQUALITY=full, as `make equality` sets it, all, for SmolLM2 too, more
// requests alone, and new seeds.
#include "engine/identity.h"
#include "tests/support/equality.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

enum class Source { kCold, kCached, kHost, kDisk, kRestart };
constexpr const char* kSourceNames[] = {"cold", "cached", "host", "disk", "restart"};
constexpr int kModelCount = 8;
constexpr const char* kModels[kModelCount] = {"hf/llama",       "hf/kimi_linear", "kimi_k3/k3-tiny", "hf/gpt_oss",
                                              "hf/gemma3_text", "hf/qwen3_next",  "hf/qwen3_5",      "smollm2"};

struct Cell {
  int model = 0;
  bool batch = false, chunked = false;
  Source source = Source::kCold;
  bool preempted = false;
};

std::string cell_name(const Cell& cell) {
  return test_name(kModels[cell.model]) + (cell.batch ? "_batch" : "_alone") +
         (cell.chunked ? "_chunked_" : "_whole_") + kSourceNames[static_cast<int>(cell.source)] +
         (cell.preempted ? "_preempted" : "");
}

// Of SmolLM2, which is slow, one cell by default.
std::vector<Cell> cells() {
  std::vector<Cell> found;
  for (int model = 0; model < kModelCount; ++model) {
    for (int bits = 0; bits < 8; ++bits) {
      for (const Source source : {Source::kCold, Source::kCached, Source::kHost, Source::kDisk, Source::kRestart}) {
        const Cell cell{model, (bits & 1) != 0, (bits & 2) != 0, source, (bits & 4) != 0};
        const bool chosen = cell.batch && cell.chunked && source == Source::kRestart && cell.preempted;
        const bool sampled = model < kModelCount - 1 && (bits + static_cast<int>(source) + model) % 4 == 0;
        if (full_equality() || sampled || chosen) found.push_back(cell);
      }
    }
  }
  return found;
}

constexpr int64_t kRequests = 32;
constexpr int64_t kDepth = 7;  // chunks of the shared beginning

// 32 requests of every shared beginning and a tail of its own, and 32 of the same lengths without anything shared; half
// of each greedy, half sampled. What they give alone is computed once.
class Workload {
 public:
  explicit Workload(int index) {
    const std::string path = index == kModelCount - 1 ? smollm2_path() : fixture(kModels[index]);
    if (path.empty()) {
      missing = "SKIPPED: no SmolLM2: tools/fetch_smollm2.sh fetches it";
      return;
    }
    try {
      model = Model::load(path);
    } catch (const Error& error) {
      missing = std::string("SKIPPED: ") + error.what();
      return;
    }
    const int64_t vocab = model->spec.vocab;
    const uint32_t seed = test_seed() + static_cast<uint32_t>(1000 * index);
    base = random_tokens(kDepth * kPagePositions + 2, vocab, seed);
    constexpr int64_t kTails[] = {1, 15, 16, 17};
    for (const bool sharing : {true, false}) {
      for (int64_t i = 0; i < kRequests; ++i) {
        const int64_t common = i % (kDepth + 1) * kPagePositions, tail = kTails[i / (kDepth + 1)];
        const uint32_t own = seed + static_cast<uint32_t>(1 + i + (sharing ? 0 : kRequests));
        Request r{.prompt = random_tokens(common + tail, vocab, own), .max_tokens = 12};
        if (sharing) std::copy(base.begin(), base.begin() + common, r.prompt.begin());
        r.sampling.temperature = (i + i / (kDepth + 1)) % 2 == 0 ? 0.f : 0.9f;
        r.sampling.seed = own;
        r.sampling.top_logprobs = static_cast<int32_t>(i % 4) - 1;
        if (i % 3 == 0) {  // what depends on all tokens before
          r.sampling.top_p = 0.9f;
          r.sampling.presence_penalty = 0.5f;
          r.sampling.repetition_penalty = 1.2f;
        }
        (sharing ? shared : apart).push_back(std::move(r));
      }
    }
  }
  const std::vector<Request>& requests(Source source) const { return source == Source::kCold ? apart : shared; }
  static int64_t common(size_t i) { return static_cast<int64_t>(i) % (kDepth + 1) * kPagePositions; }
  const Reference& expected(Source source, size_t i) {
    const size_t at = i + (source == Source::kCold ? kRequests : 0);
    if (engine_ == nullptr) engine_ = reference_engine(*model, 256);
    const auto [found, is_new] = references_.try_emplace(at);
    if (is_new) found->second = reference(*engine_, requests(source)[i]);
    return found->second;
  }

  std::string missing;
  std::unique_ptr<Model> model;
  std::vector<int32_t> base;
  std::vector<Request> shared, apart;

 private:
  std::unique_ptr<Engine> engine_;
  std::map<size_t, Reference> references_;
};

Workload& workload(int model) {
  static std::map<int, Workload> all;
  return all.try_emplace(model, model).first->second;
}

class EqualityTest : public testing::TestWithParam<Cell> {
 protected:
  EqualityTest() : cell_(GetParam()), work_(workload(cell_.model)) {
    std::seed_seq seeds{test_seed(), static_cast<uint32_t>(std::hash<std::string>{}(cell_name(cell_)))};
    random_.seed(seeds);
  }

  ServingOptions serving_options() const {
    ServingOptions options;
    options.sequences = cell_.batch ? kRequests : 1;
    options.rows = cell_.batch ? 2304 : 256;
    options.tokens = kRequests * 160 + 256;
    options.anchors = 4 * kRequests + 256;
    options.scheduler.chunk_rows = !cell_.chunked ? options.rows : cell_.source == Source::kCold ? 40 : 8;
    options.scheduler.cache.all = true;
    // Half of the cold cells go without a cache: after a preemption everything is computed again.
    options.scheduler.cache.enabled = cell_.source != Source::kCold || !cell_.preempted;
    return options;
  }

  // An engine in the state that the cell is about: the base prompt is cached, or in the store.
  void prepare() {
    serving_.reset();
    store_.reset();
    ++prepared_;
    ServingOptions options = serving_options();
    const bool stored = cell_.source >= Source::kHost;
    if (stored && identity_ == StoreKey{}) {
      identity_ = engine_identity(Engine(*work_.model, Serving::engine_options(options)));
    }
    options.scheduler.cache.identity = identity_;
    const auto open_store = [&] {
      BlockStore::Options store{.host_bytes = cell_.source == Source::kHost ? int64_t{1} << 30 : 0,
                                .identity = identity_};
      if (cell_.source != Source::kHost) {
        store.directory = folder_.path() / std::to_string(prepared_);
        store.disk_bytes = int64_t{1} << 30;
      }
      store_ = std::make_unique<BlockStore>(store);
    };
    if (stored) open_store();
    options.store = store_.get();
    serving_ = std::make_unique<Watched>(*work_.model, options);
    if (cell_.source == Source::kCold) return;
    serving_->complete({.prompt = work_.base, .max_tokens = 1});
    if (!stored) return;
    if (cell_.source != Source::kRestart) return leave();
    serving_.reset();  // saves all
    store_->flush();
    EXPECT_GE(store_->counters().written, kDepth);
    store_.reset();
    open_store();
    EXPECT_GE(store_->counters().blocks_disk, kDepth);
    options.store = store_.get();
    serving_ = std::make_unique<Watched>(*work_.model, options);
  }

  // Everything leaves the device.
  void leave() {
    evict_everything(*serving_);
    store_->flush();
    EXPECT_EQ(store_->counters().blocks_host > 0, cell_.source == Source::kHost);
    EXPECT_EQ(store_->counters().blocks_disk > 0, cell_.source != Source::kHost);
  }

  void finish(const std::vector<std::pair<size_t, RequestId>>& ids) {
    serving_->run_watched(cell_.preempted ? &random_ : nullptr);
    int64_t deepest = 0, computed_in_pieces = 0, preempted = 0;
    for (const auto& [i, id] : ids) {
      serving_->expect_reference(id);
      const RequestUsage& usage = serving_->answer(id).end.usage;
      const int64_t cached = cell_.source == Source::kCold ? 0 : Workload::common(i);
      EXPECT_EQ(usage.cached_tokens, cached) << "request " << i;
      deepest = std::max(deepest, cached / kPagePositions);
      if (!cell_.preempted) {
        EXPECT_EQ(usage.preemptions, 0);
      }
      preempted += usage.preemptions;
      const int64_t pieces = serving_->prompt_spans[id];
      if (!cell_.chunked && !cell_.preempted) {
        EXPECT_EQ(pieces, 1) << "request " << i;
      }
      computed_in_pieces += pieces > 1 ? 1 : 0;
    }
    serving_->expect_no_difference();
    pieces_ += computed_in_pieces;
    preemptions_ += preempted;
    const PrefixCache::Counters& cache = serving_->scheduler.cache().counters();
    if (cell_.source >= Source::kHost) {
      EXPECT_GE(cache.restored_nodes, deepest);
      const BlockStore::Counters store = store_->counters();
      restored_from_host_ += store.hits_host;
      restored_from_disk_ += store.hits_disk;
      if (serving_->engine().pools().needs_restore_points() && deepest > 0) {
        EXPECT_GE(cache.restored_points, 1);
      }
      EXPECT_EQ(cache.damaged, 0);
    } else {
      EXPECT_EQ(cache.restored_nodes, 0);
    }
    serving_->expect_nothing_held();
  }

  const Cell cell_;
  Workload& work_;
  std::mt19937 random_;
  TemporaryFolder folder_;
  StoreKey identity_;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<Watched> serving_;
  int64_t prepared_ = 0;
  int64_t pieces_ = 0, preemptions_ = 0, restored_from_host_ = 0, restored_from_disk_ = 0;
};

TEST_P(EqualityTest, HasTheBitsThatItHasAlone) {
  if (!work_.missing.empty()) GTEST_SKIP() << work_.missing;
  const std::vector<Request>& requests = work_.requests(cell_.source);
  if (cell_.batch) {
    prepare();
    std::vector<std::pair<size_t, RequestId>> ids;
    for (size_t i = 0; i < requests.size(); ++i) {
      ids.push_back({i, serving_->submit(requests[i], work_.expected(cell_.source, i))});
    }
    finish(ids);
    const int64_t together = serving_->scheduler.counters().most_sequences_of_a_step;
    if (!cell_.chunked && !cell_.preempted) {
      EXPECT_EQ(together, kRequests);
    } else {
      EXPECT_GE(together, cell_.chunked ? 4 : 16);
    }
  } else {
    const size_t stride = full_equality() ? 1 : 5;  // of beginnings and tails, all
    for (size_t i = 0; i < requests.size(); i += stride) {
      prepare();
      finish({{i, serving_->submit(requests[i], work_.expected(cell_.source, i))}});
      EXPECT_EQ(serving_->scheduler.counters().most_sequences_of_a_step, 1);
    }
  }
  EXPECT_EQ(pieces_ > 0, cell_.chunked || (cell_.preempted && pieces_ > 0));
  EXPECT_EQ(preemptions_ > 0, cell_.preempted);
  EXPECT_EQ(restored_from_host_ > 0, cell_.source == Source::kHost);
  EXPECT_EQ(restored_from_disk_ > 0, cell_.source == Source::kDisk || cell_.source == Source::kRestart);
}

INSTANTIATE_TEST_SUITE_P(Table, EqualityTest, testing::ValuesIn(cells()),
                         [](const testing::TestParamInfo<Cell>& param) { return cell_name(param.param); });

}  // namespace
}  // namespace weir::test
