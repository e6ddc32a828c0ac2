// A model of every kind of mixer, and what the tests of the layer contract do with it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/equality.h"

namespace weir::test {

struct Kind {
  const char* name;
  const char* folder;
  bool mla = false;
};
inline constexpr Kind kKinds[] = {{"attention", "hf/llama"},
                                  {"kda_and_mla", "hf/kimi_linear", true},
                                  {"k3", "kimi_k3/k3-tiny", true},
                                  {"gdn", "hf/qwen3_next"},
                                  {"mla_with_rope", "hf/deepseek_v3", true},
                                  {"windows_with_sinks", "hf/gpt_oss"},
                                  {"indexer", "hf/glm_moe_dsa", true},
                                  {"per_layer_embeddings", "hf/gemma4_text"}};

class LayerContract : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    try {
      model_ = Model::load(fixture(GetParam().folder));
    } catch (const Error& error) {
      GTEST_SKIP() << "SKIPPED: " << error.what();
    }
    right_ = random_tokens(200, model_->spec.vocab, test_seed() + 40);
    wrong_ = random_tokens(200, model_->spec.vocab, test_seed() + 41);
    whole_ = std::make_unique<Engine>(*model_, exact_options(200, 200));
    expected_ = all_logits(*whole_, right_);
  }
  bool is(const char* name) const { return std::string(GetParam().name) == name; }
  bool linear() const { return whole_->pools().has_linear_layers(); }
  bool points() const { return whole_->pools().needs_restore_points(); }
  size_t vocab() const { return static_cast<size_t>(model_->spec.vocab); }

  // Rows of `source` from where the sequence stands; with `right_` every row's bits are compared.
  void go(Engine& engine, Sequence& sequence, const std::vector<int32_t>& source, size_t rows, bool accept = true) {
    const auto at = static_cast<size_t>(sequence.length());
    const SpanRequest span{&sequence, std::span(source).subspan(at, rows), LogitsWanted::kAll};
    ASSERT_EQ(engine.step({&span, 1}), StepStatus::kDone);
    if (&source == &right_) expect_rows(engine, 0, at, rows);
    if (accept) sequence.accept(sequence.length());
  }
  void expect_rows(Engine& engine, size_t logit_row, size_t position, size_t rows) {
    for (size_t r = 0; r < rows; ++r) {
      EXPECT_TRUE(same_bits(engine.logits(static_cast<int64_t>(logit_row + r)),
                            std::span(expected_).subspan((position + r) * vocab(), vocab())))
          << "position " << position + r;
    }
  }

  Request request(size_t prompt, int64_t answer = 6) const {
    return {.prompt = {right_.begin(), right_.begin() + static_cast<std::ptrdiff_t>(prompt)}, .max_tokens = answer};
  }
  // A cached prompt of 130 tokens, and a request that shares `common` of it. Its answer has the bits it has alone.
  RequestUsage hit(size_t common, const std::function<void(Watched&)>& meanwhile = {},
                   const ServingOptions& options = all_points()) {
    Watched serving(*model_, options);
    serving.complete(request(130, 1));
    if (meanwhile) meanwhile(serving);
    Request r = request(common);
    r.prompt.insert(r.prompt.end(), wrong_.begin(), wrong_.begin() + 9);
    const std::unique_ptr<Engine> alone = reference_engine(*model_, 256);
    const Reference expected = reference(*alone, r);
    const RequestId id = serving.submit(r, expected);
    serving.run_watched();
    serving.expect_all_references();
    serving.expect_nothing_held();
    return serving.answer(id).end.usage;
  }
  static ServingOptions all_points() {
    ServingOptions options;
    options.scheduler.chunk_rows = 256;
    options.scheduler.cache.all = true;
    return options;
  }

  // Several sequences at different positions, spans of these sizes in one step.
  void expect_one_step(const std::vector<std::pair<size_t, size_t>>& starts_and_rows, bool reject) {
    EngineOptions options = exact_options(256, 1600);
    options.max_sequences = 8;
    Engine engine(*model_, options);
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (const auto& [start, rows] : starts_and_rows) {
      sequences.push_back(engine.new_sequence());
      if (start > 0) go(engine, *sequences.back(), right_, start);
    }
    // Drafts that are wrong first, and taken back.
    for (int round = reject ? 0 : 1; round < 2; ++round) {
      std::vector<SpanRequest> spans;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const auto [start, rows] = starts_and_rows[s];
        spans.push_back(
            {sequences[s].get(), std::span(round == 0 ? wrong_ : right_).subspan(start, rows), LogitsWanted::kAll});
      }
      const int64_t steps = engine.steps();
      ASSERT_EQ(engine.step(spans), StepStatus::kDone);
      EXPECT_EQ(engine.steps(), steps + 1);
      size_t row = 0;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const auto [start, rows] = starts_and_rows[s];
        if (round == 1) expect_rows(engine, row, start, rows);
        row += rows;
        if (round == 0) {
          ASSERT_EQ(sequences[s]->rollback(static_cast<int64_t>(start)), static_cast<int64_t>(start));
        }
      }
    }
    for (const std::unique_ptr<Sequence>& sequence : sequences) {
      sequence->accept(sequence->length());
      go(engine, *sequence, right_, 3);
    }
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> whole_;
  std::vector<int32_t> right_, wrong_;
  std::vector<float> expected_;  // of right_, at every position
};

// The first tokens of the official implementation; golden_test compares logits and all tokens.
inline void expect_golden(const Model& model, const std::string& folder) {
  const Golden golden(fixture(folder) + "/golden.safetensors");
  const bool k3 = folder.starts_with("kimi_k3");
  Engine engine(model, exact_options(128, 160));
  GenerateOptions options;
  options.max_tokens = 12;
  options.ignore_eos = true;
  std::vector<int32_t> expected = golden.ids(k3 ? "greedy.tokens" : "greedy.ids");
  expected.resize(12);
  EXPECT_EQ(generate(engine, golden.ids(k3 ? "prompt97.tokens" : "prompt_a.ids"), options).tokens, expected);
}

}  // namespace weir::test
