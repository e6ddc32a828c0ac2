// Row purity end to end: the logits of a row are the same bits however the row came to be computed.
#include <random>

#include "engine/generate.h"
#include "tests/support/fixtures.h"

namespace weir::test {
namespace {

constexpr const char* kFolders[] = {"kimi_k3/k3-tiny", "hf/kimi_linear", "hf/llama",      "hf/gpt_oss",
                                    "hf/gemma3_text",  "hf/gemma4_text", "hf/gemma4_moe", "hf/qwen3_next",
                                    "hf/qwen3_5_moe",  "hf/deepseek_v3", "hf/glm_moe_dsa"};

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return tokens;
}

class PurityTest : public testing::TestWithParam<const char*> {
 protected:
  PurityTest() : model_(Model::load(fixture(GetParam()))) {}
  std::vector<int32_t> tokens(int64_t count, uint32_t seed) const {
    return random_tokens(count, model_->spec.vocab, seed);
  }
  std::unique_ptr<Model> model_;
};

TEST_P(PurityTest, StepSizesThreadsAndKernelSetsGiveTheSameBits) {
  const std::vector<int32_t> prompt = tokens(333, 1);
  std::vector<float> expected;
  for (KernelSet set : kernel_sets()) {
    for (int threads : {1, 2}) {
      for (int32_t rows : {1, 7, 16, 64, 1000}) {
        if (set == KernelSet::kReference && (rows == 1 || threads == 2)) continue;  // slow, and the same loops
        EngineOptions options = exact_options(rows, 340, threads);
        options.kernels = set;
        Engine engine(*model_, options);
        const std::vector<float> logits = all_logits(engine, prompt);
        EXPECT_EQ(engine.steps(), (333 + rows - 1) / rows) << "rows were not computed together";
        if (expected.empty()) expected = logits;
        EXPECT_TRUE(same_bits(logits, expected))
            << kernel_set_name(set) << ", " << threads << " threads, " << rows << " rows";
      }
    }
  }
}

TEST_P(PurityTest, WeightsAreReadOncePerStepWhateverItsRows) {
  const std::vector<int32_t> prompt = tokens(64, 2);
  int64_t bytes[2];
  int i = 0;
  for (int32_t rows : {1, 64}) {
    Engine engine(*model_, exact_options(rows, 64));
    all_logits(engine, prompt);
    bytes[i++] = engine.device().counters().weight_bytes_read;
  }
  // One step of 64 rows may touch every expert, and a step of one row only some.
  EXPECT_LT(bytes[1] * 8, bytes[0]);
  // Rows of a tied embedding are read once more, as the output matrix.
  EXPECT_LE(bytes[1], model_->weight_bytes() + 64 * model_->spec.embedding.row_bytes);
}

TEST_P(PurityTest, EverySequenceOfABatchHasTheBitsItHasAlone) {
  const int64_t lengths[] = {1, 2, 15, 16, 17, 50, 64, 97};
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> alone;
  for (int64_t length : lengths) {
    prompts.push_back(tokens(length, static_cast<uint32_t>(100 + length)));
    Engine engine(*model_, exact_options(128, 128));
    alone.push_back(all_logits(engine, prompts.back()));
  }
  for (int threads : {1, 2}) {
    EngineOptions options = exact_options(512, 512, threads);
    options.max_sequences = 8;
    Engine engine(*model_, options);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<SpanRequest> spans;
    for (const std::vector<int32_t>& prompt : prompts) {
      sequences.push_back(engine.new_sequence());
      spans.push_back({sequences.back().get(), prompt, LogitsWanted::kAll});
    }
    ASSERT_EQ(engine.step(spans), StepStatus::kDone);
    EXPECT_EQ(engine.steps(), 1);
    int64_t row = 0;
    for (size_t s = 0; s < prompts.size(); ++s) {
      for (size_t r = 0; r < prompts[s].size(); ++r, ++row) {
        const size_t vocab = static_cast<size_t>(model_->spec.vocab);
        EXPECT_TRUE(same_bits(engine.logits(row), std::span(alone[s]).subspan(r * vocab, vocab)))
            << "sequence " << s << ", row " << r;
      }
    }
  }
}

// Eight sequences advance by random spans in shared steps, decode rows beside prompt chunks, in an engine whose blocks
// are recycled and poisoned.
TEST_P(PurityTest, RandomRaggedSchedulesGiveTheBitsOfAWholePass) {
  std::mt19937 random(7);
  EngineOptions options = exact_options(64, 8 * 112, 2);
  options.max_sequences = 8;
  Engine engine(*model_, options);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> expected;
  for (uint32_t s = 0; s < 8; ++s) {
    prompts.push_back(tokens(60 + 5 * s, 200 + s));
    Engine whole(*model_, exact_options(128, 128));
    expected.push_back(all_logits(whole, prompts.back()));
  }
  for (int round = 0; round < 2; ++round) {  // the second round lives on blocks that the first has given back
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (int s = 0; s < 8; ++s) sequences.push_back(engine.new_sequence());
    int64_t mixed_steps = 0;
    for (bool running = true; running;) {
      std::vector<SpanRequest> spans;
      std::vector<std::pair<size_t, size_t>> rows;  // (sequence, position) by logit row
      size_t budget = 64;
      running = false;
      for (size_t s = 0; s < 8; ++s) {
        const auto done = static_cast<size_t>(sequences[s]->length());
        const size_t left = prompts[s].size() - done;
        running |= left > 0;
        if (left == 0 || budget == 0 || random() % 4 == 0) continue;
        const size_t take = std::min({left, budget, random() % 2 == 0 ? size_t{1} : 1 + random() % 40});
        budget -= take;
        spans.push_back({sequences[s].get(), std::span(prompts[s]).subspan(done, take), LogitsWanted::kAll});
        for (size_t r = 0; r < take; ++r) rows.push_back({s, done + r});
      }
      if (spans.empty()) continue;
      mixed_steps += spans.size() > 1;
      ASSERT_EQ(engine.step(spans), StepStatus::kDone);
      for (const SpanRequest& span : spans) span.sequence->accept(span.sequence->length());
      const size_t vocab = static_cast<size_t>(model_->spec.vocab);
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto [s, position] = rows[i];
        ASSERT_TRUE(
            same_bits(engine.logits(static_cast<int64_t>(i)), std::span(expected[s]).subspan(position * vocab, vocab)))
            << "sequence " << s << ", position " << position;
      }
    }
    EXPECT_GT(mixed_steps, 5) << "sequences were not batched";
  }
  for (int group = 0; group < engine.pools().groups(); ++group) {
    EXPECT_EQ(engine.pools().pages(group).free_count(), engine.pools().pages(group).count()) << "pages leaked";
  }
  EXPECT_EQ(engine.pools().anchors().free_count(), engine.pools().anchors().count()) << "anchors leaked";
}

TEST_P(PurityTest, RollbackToAnyPositionEqualsNeverHavingGoneFurther) {
  std::mt19937 random(11);
  const size_t vocab = static_cast<size_t>(model_->spec.vocab);
  const std::vector<int32_t> right = tokens(160, 5);
  const std::vector<int32_t> wrong = tokens(160, 6);
  Engine whole(*model_, exact_options(160, 160));
  const std::vector<float> expected = all_logits(whole, right);
  for (int64_t spacing : {0, 48}) {
    EngineOptions options = exact_options(64, 400, 2);
    options.anchor_spacing = spacing;
    options.protect_anchors = true;
    Engine engine(*model_, options);
    int64_t cheap = 0, recomputed = 0;
    for (int trial = 0; trial < 40; ++trial) {
      const std::unique_ptr<Sequence> sequence = engine.new_sequence();
      const auto go = [&](const std::vector<int32_t>& source, size_t to, bool accept) {
        while (static_cast<size_t>(sequence->length()) < to) {
          const auto at = static_cast<size_t>(sequence->length());
          const size_t rows = std::min<size_t>(to - at, 1 + random() % 24);
          const SpanRequest request{sequence.get(), std::span(source).subspan(at, rows), LogitsWanted::kAll};
          ASSERT_EQ(engine.step({&request, 1}), StepStatus::kDone);
          for (size_t r = 0; r < rows && &source == &right; ++r) {
            ASSERT_TRUE(
                same_bits(engine.logits(static_cast<int64_t>(r)), std::span(expected).subspan((at + r) * vocab, vocab)))
                << "trial " << trial << ", position " << at + r;
          }
          if (accept) sequence->accept(sequence->length());
        }
      };
      const size_t target = 1 + random() % 140;
      go(right, target, true);
      // Drafts cross at most a boundary or two before they are rejected; every other trial goes deeper.
      const bool accept = trial % 2 == 1;
      go(wrong, std::min<size_t>(160, target + 1 + random() % (accept ? 100 : 16)), accept);
      const int64_t resumed = sequence->rollback(static_cast<int64_t>(target));
      ASSERT_LE(resumed, static_cast<int64_t>(target));
      (resumed == static_cast<int64_t>(target) ? cheap : recomputed) += 1;
      if (!accept && static_cast<int64_t>(target) - resumed > 0) FAIL() << "rejected drafts cost recomputation";
      if (spacing > 0) {
        EXPECT_LE(static_cast<int64_t>(target) - resumed, spacing + 16);
      }
      go(right, 160, true);
    }
    EXPECT_GT(cheap, 10);
    if (engine.pools().has_linear_layers()) {
      EXPECT_GT(recomputed, 3);
    }
  }
}

TEST_P(PurityTest, StateBytesWrittenPerDecodedToken) {
  const std::vector<int32_t> prompt = tokens(17 + 160, 9);
  Engine engine(*model_, exact_options(32, 200));
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  const auto step = [&](size_t at, size_t rows) {
    const SpanRequest request{sequence.get(), std::span(prompt).subspan(at, rows), LogitsWanted::kLast};
    ASSERT_EQ(engine.step({&request, 1}), StepStatus::kDone);
    sequence->accept(sequence->length());
  };
  step(0, 17);
  const int64_t before = engine.device().counters().state_bytes_written;
  for (size_t i = 0; i < 160; ++i) step(17 + i, 1);
  const double written = static_cast<double>(engine.device().counters().state_bytes_written - before) / 160;
  double rows = 0;
  for (const StateLayout::Group& group : engine.circuit().layout().groups())
    rows += static_cast<double>(group.row_bytes);
  double anchor = 0;
  for (const StateLayout::Part& part : engine.circuit().layout().anchor_parts())
    anchor += static_cast<double>(part.bytes);
  std::printf("%s: %.0f bytes a token; rows %.0f + anchor / 16 %.0f\n", GetParam(), written, rows, anchor / 16);
  EXPECT_NEAR(written, rows + anchor / 16, 0.01 * (rows + anchor / 16));
}

TEST_P(PurityTest, SampledCompletionsDependOnTheSeedAlone) {
  const std::vector<int32_t> prompt = tokens(40, 3);
  GenerateOptions options;
  options.max_tokens = 32;
  options.ignore_eos = true;
  options.sampling = {0.8f, 1234};
  std::vector<int32_t> expected;
  for (int32_t rows : {1, 40}) {
    Engine engine(*model_, exact_options(rows, 100, rows == 1 ? 1 : 2));
    const std::vector<int32_t> found = generate(engine, prompt, options).tokens;
    if (expected.empty()) expected = found;
    EXPECT_EQ(found, expected);
  }
  options.sampling.seed = 1235;
  Engine engine(*model_, exact_options(40, 100));
  EXPECT_NE(generate(engine, prompt, options).tokens, expected);
}

TEST_P(PurityTest, ShortPoolsRefuseAStepAndChangeNothing) {
  const std::vector<int32_t> prompt = tokens(64, 4);
  Engine whole(*model_, exact_options(64, 64));
  const std::vector<float> expected = all_logits(whole, prompt);
  EngineOptions options = exact_options(64, 40);
  Engine engine(*model_, options);
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  const SpanRequest too_long{sequence.get(), prompt, LogitsWanted::kAll};
  // 40 tokens and one spare page hold 64 rows at 16 a page: ask for more than that.
  const std::unique_ptr<Sequence> other = engine.new_sequence();
  const SpanRequest both[] = {{other.get(), std::span(prompt).first(20), LogitsWanted::kLast}, too_long};
  EXPECT_EQ(engine.step(both), StepStatus::kOutOfBlocks);
  EXPECT_EQ(sequence->length(), 0);
  EXPECT_EQ(other->length(), 0);
  ASSERT_EQ(engine.step({&too_long, 1}), StepStatus::kDone);
  EXPECT_TRUE(same_bits(engine.logits(63), std::span(expected).last(static_cast<size_t>(model_->spec.vocab))));
}

INSTANTIATE_TEST_SUITE_P(Models, PurityTest, testing::ValuesIn(kFolders), [](const auto& param) {
  std::string name = param.param;
  for (char& c : name) {
    if (c == '/' || c == '-') c = '_';
  }
  return name;
});

}  // namespace
}  // namespace weir::test
