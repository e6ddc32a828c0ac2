// What `weir bench` measures with: rows and routers that spread over the experts as those of a served model do.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cli/bench_run.h"
#include "models/generated_weights.h"

namespace weir::cli {
namespace {

TEST(Bench, SequencesHaveTokensOfTheirOwnTheSameInEveryRun) {
  std::set<std::vector<int32_t>> all;
  for (int64_t sequence = 0; sequence < 64; ++sequence) {
    const std::vector<int32_t> tokens = bench_tokens(sequence, 8, 163840);
    EXPECT_EQ(tokens, bench_tokens(sequence, 8, 163840));
    EXPECT_TRUE(std::ranges::all_of(tokens, [](int32_t id) { return id >= 0 && id < 163840; }));
    all.insert(tokens);
  }
  EXPECT_EQ(all.size(), 64u);
  for (size_t position = 0; position < 8; ++position) {
    std::set<int32_t> column;
    for (const std::vector<int32_t>& tokens : all) column.insert(tokens[position]);
    EXPECT_GT(column.size(), 60u) << position;
  }
}

TEST(Bench, GeneratedRoutersPreferNoExpert) {
  GeneratedWeights weights(WeightFormat::kBf16, true);
  EXPECT_EQ(weights.floats("model.layers.1.mlp.gate.e_score_correction_bias", 256), std::vector<float>(256, 0.f));
  const std::vector<float> other = weights.floats("model.layers.1.self_attn.dt_bias", 256);
  EXPECT_GT(std::ranges::count_if(other, [](float value) { return value != 0; }), 250);
}

}  // namespace
}  // namespace weir::cli
