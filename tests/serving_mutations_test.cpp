// The tests of equality can fail: what they compare is changed as faults of the engine would change it, and every
// change must show in the bits of a logit.
#include <functional>
#include <set>

#include "tests/support/equality.h"

namespace weir::test {
namespace {

constexpr int64_t kDepth = 7;

struct MutatedModel {
  const char* folder;
  bool linear;
};

class ServingMutationsTest : public testing::TestWithParam<MutatedModel> {
 protected:
  ServingMutationsTest() : model_(Model::load(fixture(GetParam().folder))), alone_(reference_engine(*model_, 512)) {}

  std::vector<int32_t> tokens(int64_t count, uint32_t seed) const {
    return random_tokens(count, model_->spec.vocab, test_seed() + seed);
  }
  static ServingOptions options() {
    ServingOptions options;
    options.anchors = 128;
    options.scheduler.chunk_rows = 256;
    options.scheduler.cache.all = true;
    return options;
  }

  // Requests that start at every multiple of 16 of a cached prompt, after `mutate` changed the blocks. Returns how many
  // gave other tokens or other logits than alone.
  int64_t changed_by(const std::function<void(StatePools&)>& mutate) {
    const std::vector<int32_t> base = tokens(kDepth * kPagePositions + 2, 1);
    Watched serving(*model_, options());
    serving.complete({.prompt = base, .max_tokens = 1});
    mutate(serving.engine().pools());
    std::set<RequestId> changed;
    for (int64_t chunk = 1; chunk <= kDepth; ++chunk) {
      Request r{.prompt = {base.begin(), base.begin() + chunk * kPagePositions}, .max_tokens = 4};
      const std::vector<int32_t> own = tokens(3, static_cast<uint32_t>(10 + chunk));
      r.prompt.insert(r.prompt.end(), own.begin(), own.end());
      const Reference expected = reference(*alone_, r);
      const RequestId id = serving.submit(r, expected);
      while (serving.step()) {}
      EXPECT_EQ(serving.answer(id).end.usage.cached_tokens, chunk * kPagePositions);
      if (serving.answer(id).tokens != expected.tokens) changed.insert(id);
    }
    for (const Watched::Difference& d : serving.differences) changed.insert(d.request);
    return static_cast<int64_t>(changed.size());
  }

  // The held blocks of a pool.
  static std::vector<uint32_t> held(const RawBlockPool& pool) {
    std::vector<uint32_t> ids;
    for (uint32_t id = 0; id < pool.count(); ++id) {
      if (pool.references(id) > 0) ids.push_back(id);
    }
    return ids;
  }
  // Group 0 is the journal's where the first layer is linear.
  static int last_kept_group(const StatePools& pools) {
    int found = -1;
    for (int group = 0; group < pools.groups(); ++group) {
      if (pools.kept_forever(group)) found = group;
    }
    return found;
  }
  static std::byte* block(RawBlockPool& pool, uint32_t id) { return pool.view().block(PageId{id}); }

  // Changes one byte of a number that is not tiny.
  static void trash(std::byte* bytes, int64_t count, std::mt19937& random) {
    for (;;) {
      const int64_t at = static_cast<int64_t>(random() % static_cast<uint64_t>(count / 4)) * 4;
      float value;
      std::memcpy(&value, bytes + at, 4);
      if (!(std::abs(value) > 1e-2f)) continue;
      bytes[at + 2] ^= std::byte{0x20};  // of the mantissa's upper bits
      return;
    }
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> alone_;
};

TEST_P(ServingMutationsTest, NothingChangedIsNothingFound) {
  EXPECT_EQ(changed_by([](StatePools&) {}), 0);
}

TEST_P(ServingMutationsTest, AByteOfACachedPage) {
  std::mt19937 random(test_seed());
  for (int trial = 0; trial < 4; ++trial) {
    EXPECT_GT(changed_by([&](StatePools& pools) {
                RawBlockPool& pages = pools.pages(last_kept_group(pools));
                const std::vector<uint32_t> ids = held(pages);
                trash(block(pages, ids[random() % ids.size()]), pages.block_bytes(), random);
              }),
              0);
  }
}

TEST_P(ServingMutationsTest, AByteOfAnAnchor) {
  if (!GetParam().linear) GTEST_SKIP() << "no layer has anchors";
  std::mt19937 random(test_seed());
  for (int trial = 0; trial < 4; ++trial) {
    EXPECT_EQ(changed_by([&](StatePools& pools) {
                const std::vector<uint32_t> ids = held(pools.anchors());
                trash(block(pools.anchors(), ids[random() % ids.size()]), pools.anchors().block_bytes(), random);
              }),
              1)
        << "the request that starts there, and no other";
  }
}

TEST_P(ServingMutationsTest, TwoAnchorsSwapped) {
  if (!GetParam().linear) GTEST_SKIP() << "no layer has anchors";
  EXPECT_EQ(changed_by([&](StatePools& pools) {
              const std::vector<uint32_t> ids = held(pools.anchors());
              std::byte* first = block(pools.anchors(), ids[0]);
              std::swap_ranges(first, first + pools.anchors().block_bytes(), block(pools.anchors(), ids[1]));
            }),
            2);
}

TEST_P(ServingMutationsTest, TheWindowOfTheConvolutionDropped) {
  if (!GetParam().linear) GTEST_SKIP() << "no layer has a convolution";
  const StateLayout layout = Engine(*model_, exact_options(16, 16)).circuit().layout();
  int64_t parts = 0, offset = 0;
  for (const StateLayout::Part& part : layout.anchor_parts()) {
    if (part.name.ends_with("_window")) {
      ++parts;
      EXPECT_EQ(changed_by([&](StatePools& pools) {
                  for (const uint32_t id : held(pools.anchors())) {
                    std::memset(block(pools.anchors(), id) + offset, 0, static_cast<size_t>(part.bytes));
                  }
                }),
                kDepth)
          << part.name;
    }
    offset += (part.bytes + 63) / 64 * 64;
    if (parts == (full_equality() ? -1 : 2)) break;
  }
  EXPECT_GT(parts, 0);
}

TEST_P(ServingMutationsTest, TheJournalOneRowShort) {
  if (!GetParam().linear) GTEST_SKIP() << "no layer has a journal";
  Request r{.prompt = tokens(40, 2), .max_tokens = 12};
  const Reference expected = reference(*alone_, r);
  for (const bool mutate : {false, true}) {
    Watched serving(*model_, options());
    serving.submit(r, expected);
    for (int step = 0; serving.step(); ++step) {
      if (!mutate || step != 3) continue;
      StatePools& pools = serving.engine().pools();
      const int group = pools.journal_group();
      RawBlockPool& pages = pools.pages(group);
      const int64_t row = (40 + 3 - 1) % kPagePositions;  // the newest
      int64_t offset = 0;
      for (const StateLayout::Part& part :
           serving.engine().circuit().layout().groups()[static_cast<size_t>(group)].parts) {
        for (const uint32_t id : held(pages)) {
          std::memset(block(pages, id) + offset + row * part.bytes, 0, static_cast<size_t>(part.bytes));
        }
        offset += (kPagePositions * part.bytes + 63) / 64 * 64;
      }
    }
    EXPECT_EQ(serving.differences.empty(), !mutate);
  }
}

// Two live sequences; a block that one of them uses is given back under its feet, and the other one takes it.
class SharedBlock {
 public:
  SharedBlock(const Model& model, const ServingOptions& options, const Request& a, const Reference& ra,
              const Request& b, const Reference& rb)
      : serving(model, options) {
    serving.submit(a, ra);
    first_step_ = serving.step();
    serving.submit(b, rb);
  }
  // `steal`: the block of the first one; true when another one took it before the end.
  bool run(RawBlockPool& pool, uint32_t stolen) {
    EXPECT_TRUE(first_step_);
    pool.poison_released(false);
    pool.release(stolen);
    bool taken = false;
    while (serving.step()) {
      if (taken || pool.references(stolen) == 0) continue;
      taken = true;
      pool.retain(stolen);  // both give it back in the end
    }
    return taken;
  }
  Watched serving;

 private:
  bool first_step_ = false;
};

TEST_P(ServingMutationsTest, AnAnchorSharedByTwoSequences) {
  if (!GetParam().linear) GTEST_SKIP() << "no layer has anchors";
  const Request a{.prompt = tokens(36, 3), .max_tokens = 12}, b{.prompt = tokens(40, 4), .max_tokens = 12};
  const Reference ra = reference(*alone_, a), rb = reference(*alone_, b);
  ServingOptions o = options();
  o.scheduler.cache.enabled = false;
  SharedBlock shared(*model_, o, a, ra, b, rb);
  RawBlockPool& anchors = shared.serving.engine().pools().anchors();
  const std::vector<uint32_t> ids = held(anchors);
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_TRUE(shared.run(anchors, ids[0]));
  EXPECT_FALSE(shared.serving.differences.empty());
}

TEST_P(ServingMutationsTest, APageFreedEarly) {
  const Request a{.prompt = tokens(36, 5), .max_tokens = 12}, b{.prompt = tokens(40, 6), .max_tokens = 12};
  const Reference ra = reference(*alone_, a), rb = reference(*alone_, b);
  ServingOptions o = options();
  o.scheduler.cache.enabled = false;
  SharedBlock shared(*model_, o, a, ra, b, rb);
  StatePools& pools = shared.serving.engine().pools();
  RawBlockPool& pages = pools.pages(last_kept_group(pools));
  const std::vector<uint32_t> ids = held(pages);
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_TRUE(shared.run(pages, ids[0]));
  EXPECT_FALSE(shared.serving.differences.empty());
}

INSTANTIATE_TEST_SUITE_P(Models, ServingMutationsTest,
                         testing::Values(MutatedModel{"hf/llama", false}, MutatedModel{"hf/kimi_linear", true},
                                         MutatedModel{"kimi_k3/k3-tiny", true}, MutatedModel{"hf/gpt_oss", false}),
                         [](const testing::TestParamInfo<MutatedModel>& param) {
                           return test_name(param.param.folder);
                         });

}  // namespace
}  // namespace weir::test
