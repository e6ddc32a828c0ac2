#include "models/rope_config.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <cmath>

#include "formats/gguf_testing.h"
#include "formats/testing.h"

namespace weir {
namespace {

JsonObject config(const char* text) { return JsonObject("config.json", "", boost::json::parse(text).as_object()); }

// FP32 with a handful of operations per frequency.
constexpr double kTolerance = 5e-7;

struct Expected {
  size_t i;
  double inv_freq;
};

void expect_frequencies(const RopeSpec& rope, std::initializer_list<Expected> expected) {
  for (const Expected& e : expected) {
    ASSERT_LT(e.i, rope.inv_freq.size());
    EXPECT_NEAR(rope.inv_freq[e.i], e.inv_freq, kTolerance * e.inv_freq) << e.i;
  }
}

// Computed in double by the formulas of transformers' _compute_yarn_parameters.
const std::initializer_list<Expected> kYarn4 = {{0, 1},
                                                {20, 0.01333521432163324},
                                                {24, 0.005375321490790102},
                                                {30, 0.0010643609812470017},
                                                {36, 0.00017984115587395423},
                                                {40, 4.445698525097307e-05},
                                                {63, 3.102344401879299e-07}};

TEST(RopeConfig, YarnInBothGenerationsOfFields) {
  const RopeSpec published = load_rope(config(R"({"max_position_embeddings": 40960, "rope_theta": 1000000.0,
      "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})"),
                                       128);
  const RopeSpec newer = load_rope(config(R"({"max_position_embeddings": 40960, "rope_parameters": {"rope_type": "yarn",
      "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768}})"),
                                   128);
  EXPECT_EQ(published.inv_freq, newer.inv_freq);
  EXPECT_EQ(published.inv_freq.size(), 64u);
  expect_frequencies(published, kYarn4);
  EXPECT_FLOAT_EQ(published.attention_factor, 1.138629436111989f);  // 0.1 ln 4 + 1
  EXPECT_EQ(newer.attention_factor, published.attention_factor);
}

TEST(RopeConfig, YarnWithoutTruncationAndWithAFactorOfItsOwn) {
  const RopeSpec rope =
      load_rope(config(R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 150000, "factor": 32,
      "original_max_position_embeddings": 4096, "truncate": false, "attention_factor": 1.25}})"),
                64);
  expect_frequencies(rope, {{0, 1},
                            {8, 0.050813274815461475},
                            {9, 0.03170569618466377},
                            {12, 0.006794959489732219},
                            {17, 0.00012931870124506317},
                            {18, 3.8308812373753384e-05},
                            {31, 3.0235114281192144e-07}});
  EXPECT_EQ(rope.attention_factor, 1.25f);
}

TEST(RopeConfig, YarnOfDeepSeekScalesByAQuotientOfFactors) {
  const RopeSpec rope = load_rope(config(R"({"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0,
      "mscale_all_dim": 0.5, "original_max_position_embeddings": 4096}})"),
                                  64);
  EXPECT_FLOAT_EQ(rope.attention_factor, static_cast<float>((0.1 * std::log(40.) + 1) / (0.05 * std::log(40.) + 1)));
  EXPECT_DOUBLE_EQ(rope.softmax_factor, std::pow(0.05 * std::log(40.) + 1, 2));
  const RopeSpec plain = load_rope(
      config(R"({"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}})"), 64);
  EXPECT_EQ(plain.softmax_factor, 1);
}

TEST(RopeConfig, LinearDividesEveryFrequency) {
  const RopeSpec plain = load_rope(config(R"({"rope_theta": 10000})"), 64);
  const RopeSpec linear =
      load_rope(config(R"({"rope_theta": 10000, "rope_scaling": {"type": "linear", "factor": 8}})"), 64);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(linear.inv_freq[i], plain.inv_freq[i] / 8);
  expect_frequencies(plain, {{0, 1}, {16, 0.01}, {31, std::pow(10000., -62. / 64)}});
}

TEST(RopeConfig, UnknownTypesAreRefusedByName) {
  for (const char* type : {"dynamic", "longrope", "moebius"}) {
    const JsonObject c = config(concat(R"({"rope_scaling": {"rope_type": ")", type, R"(", "factor": 2}})").c_str());
    const std::string message = testing::error_of([&] { load_rope(c, 64); });
    EXPECT_NE(message.find("rope_scaling.rope_type"), std::string::npos) << message;
    EXPECT_NE(message.find(type), std::string::npos) << message;
  }
}

RopeSpec from_gguf(std::vector<std::pair<std::string, std::string>> keys, int64_t dims,
                   const FloatVector& factors = {}) {
  testing::GgufBytes file;
  file.set("general.architecture", testing::gguf_text("qwen3"));
  file.set("qwen3.context_length", testing::gguf_u32(32768));
  for (const auto& [key, value] : keys) file.set("qwen3.rope." + key, value);
  const testing::TempFolder folder;
  folder.write("m.gguf", file.text());
  const GgufFile gguf = GgufFile::open(folder.file("m.gguf"));
  return load_rope(GgufConfig(gguf), dims, factors);
}

TEST(RopeConfig, GgufSaysTheSameAsTheFolder) {
  const auto yarn = testing::gguf_text("yarn");
  const RopeSpec rope = from_gguf({{"freq_base", testing::gguf_f32(1e6f)},
                                   {"scaling.type", yarn},
                                   {"scaling.factor", testing::gguf_f32(4)},
                                   {"scaling.original_context_length", testing::gguf_u32(32768)}},
                                  128);
  expect_frequencies(rope, kYarn4);
  EXPECT_FLOAT_EQ(rope.attention_factor, 1.138629436111989f);
  EXPECT_EQ(rope.softmax_factor, 1);
  // The key holds 0.1 mscale_all_dim.
  const RopeSpec deepseek = from_gguf({{"scaling.type", yarn},
                                       {"scaling.factor", testing::gguf_f32(40)},
                                       {"scaling.original_context_length", testing::gguf_u32(4096)},
                                       {"scaling.yarn_log_multiplier", testing::gguf_f32(0.1f)}},
                                      64);
  EXPECT_EQ(deepseek.attention_factor, 1);
  EXPECT_NEAR(deepseek.softmax_factor, std::pow(0.1 * std::log(40.) + 1, 2), 1e-7);
  const RopeSpec plain = from_gguf({}, 64);
  EXPECT_EQ(plain.inv_freq, load_rope(config("{}"), 64).inv_freq);
  EXPECT_EQ(plain.attention_factor, 1);
  const RopeSpec linear =
      from_gguf({{"scaling.type", testing::gguf_text("linear")}, {"scaling.factor", testing::gguf_f32(2)}}, 64);
  const RopeSpec older = from_gguf({{"scale_linear", testing::gguf_f32(2)}}, 64);
  const RopeSpec factors = from_gguf({}, 64, FloatVector(32, 2.f));
  EXPECT_EQ(linear.inv_freq[5], plain.inv_freq[5] / 2);
  EXPECT_EQ(older.inv_freq, linear.inv_freq);
  EXPECT_EQ(factors.inv_freq, linear.inv_freq);
}

}  // namespace
}  // namespace weir
