// Gemma 3 and 4 beyond their goldens' logits: the stream after every layer, GGUF's own golden, configurations that say
// the same in another way, options that no golden sets, and what is refused.
#include <fstream>
#include <functional>
#include <map>

#include "engine/generate.h"
#include "tests/support/fixtures.h"
#include "tests/support/gguf_files.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

namespace json = boost::json;

std::vector<float> logits_of(const Model& model, const std::vector<int32_t>& ids, int32_t rows = 97) {
  Engine engine(model, exact_options(rows, static_cast<int64_t>(ids.size())));
  return all_logits(engine, ids);
}
std::vector<float> logits_of(const std::string& path, const std::vector<int32_t>& ids) {
  return logits_of(*Model::load(path), ids);
}

std::vector<int32_t> prompt(const std::string& folder) {
  return Golden(fixture(folder) + "/golden.safetensors").ids("prompt_a.ids");
}

class GemmaVariants : public ::testing::Test {
 protected:
  std::string write(const ModelFiles& files) {
    const std::filesystem::path path = folder_.path() / std::to_string(++count_);
    files.write(path);
    return path.string();
  }
  void expect_refused(const ModelFiles& files, const std::vector<std::string>& parts) {
    const std::string path = write(files);
    try {
      Model::load(path);
      ADD_FAILURE() << "loaded without " << parts.front();
    } catch (const Error& error) {
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " not in " << error.what();
      }
    }
  }
  TemporaryFolder folder_;
  int count_ = 0;
};

// --- goldens ---

// Keeps the stream at the golden positions: the buffer that the last op of each layer wrote.
class Streams : public StepObserver {
 public:
  explicit Streams(std::vector<int32_t> positions) : positions_(std::move(positions)) {}
  void after(const BoundOp& op, Buffer output) override {
    const std::string_view name = op.name();
    const bool ends_layer = name.ends_with(".ffn.add") || name.ends_with(".per_layer.add");
    if (name != "embedding" && !ends_layer) return;
    const std::string key(name == "embedding" ? name : name.substr(0, name.find('.', sizeof "layers.")));
    std::vector<float>& rows = rows_[key];
    rows.clear();
    for (const int32_t p : positions_) {
      rows.insert(rows.end(), output.data + p * output.cols, output.data + (p + 1) * output.cols);
    }
  }
  std::map<std::string, std::vector<float>> rows_;

 private:
  std::vector<int32_t> positions_;
};

class GemmaStreams : public ::testing::TestWithParam<const char*> {};

TEST_P(GemmaStreams, AfterEveryLayerAreThoseOfTheOfficialImplementation) {
  const std::unique_ptr<Model> model = Model::load(fixture(GetParam()));
  const Golden golden(fixture(GetParam()) + "/golden.safetensors");
  const std::vector<float> expected = golden.floats("prompt_a.hidden");
  const std::vector<int32_t> ids = golden.ids("prompt_a.ids");
  Engine engine(*model, exact_options(128, 128));
  Streams streams(golden.ids("prompt_a.hidden_pos"));
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  const SpanRequest request{sequence.get(), ids, LogitsWanted::kLast};
  ASSERT_EQ(engine.step({&request, 1}, &streams), StepStatus::kDone);
  const size_t layers = model->spec.layers.size();
  const size_t size = expected.size() / (layers + 1);
  ASSERT_EQ(streams.rows_.size(), layers + 1);
  for (size_t i = 0; i <= layers; ++i) {
    const std::string key = i == 0 ? "embedding" : concat("layers.", i - 1);
    const float difference = max_difference(streams.rows_.at(key), std::span(expected).subspan(i * size, size));
    std::printf("%s, %s: largest difference %.2e\n", GetParam(), key.c_str(), difference);
    EXPECT_LE(difference, 2e-4f) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GemmaStreams, ::testing::Values("hf/gemma3_text", "hf/gemma4_text", "hf/gemma4_moe"),
                         [](const auto& param) { return std::string(param.param).substr(3); });

// The converter keeps no query_pre_attn_scalar, so this file has a golden of its own.
TEST(Gemma3Gguf, MatchesItsGolden) {
  const std::unique_ptr<Model> model = Model::load(fixture("gguf/gemma3_text-bf16.gguf"));
  const Golden golden(fixture("gguf/gemma3_text-gguf-golden.safetensors"));
  for (const KernelSet set : kernel_sets()) {
    EngineOptions options = exact_options(128, 128);
    options.kernels = set;
    Engine engine(*model, options);
    const float difference =
        max_difference(all_logits(engine, golden.ids("prompt_a.ids")), golden.floats("prompt_a.logits"));
    std::printf("gguf/gemma3_text, %s: largest difference %.2e\n", std::string(kernel_set_name(set)).c_str(),
                difference);
    EXPECT_LE(difference, 1.5e-3) << kernel_set_name(set);
  }
}

TEST_F(GemmaVariants, Gemma3GgufHasTheBitsOfAFolderWithItsScale) {
  ModelFiles files = ModelFiles::read(fixture("hf/gemma3_text"));
  files.config["query_pre_attn_scalar"] = 32;
  const std::vector<int32_t> ids = prompt("hf/gemma3_text");
  EXPECT_TRUE(same_bits(logits_of(fixture("gguf/gemma3_text-bf16.gguf"), ids), logits_of(write(files), ids)));
}

// --- the same in other words ---

TEST_F(GemmaVariants, PublishedFieldsOfGemma3GiveTheBitsOfTheNewerOnes) {
  const std::vector<int32_t> ids = prompt("hf/gemma3_text");
  const std::vector<float> expected = logits_of(fixture("hf/gemma3_text"), ids);
  ModelFiles files = ModelFiles::read(fixture("hf/gemma3_text"));
  files.config = read_json_file(fixture("hf/gemma3_text/config.hub.json")).as_object();
  ASSERT_FALSE(files.config.contains("rope_parameters"));
  EXPECT_TRUE(same_bits(logits_of(write(files), ids), expected));
  files.config["rope_local_base_freq"] = 20000.0;
  EXPECT_FALSE(same_bits(logits_of(write(files), ids), expected));
}

TEST_F(GemmaVariants, APeriodOfWindowsStandsForALayerList) {
  ModelFiles files = ModelFiles::read(fixture("hf/gemma3_text"));
  const std::vector<int32_t> ids = prompt("hf/gemma3_text");
  files.config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention",
                                 "sliding_attention"};
  const std::vector<float> expected = logits_of(write(files), ids);
  files.config.erase("layer_types");
  files.config["sliding_window_pattern"] = 2;
  EXPECT_TRUE(same_bits(logits_of(write(files), ids), expected));
  files.config.erase("sliding_window_pattern");  // six, so that all five are windowed
  EXPECT_FALSE(same_bits(logits_of(write(files), ids), expected));
}

TEST_F(GemmaVariants, GlobalFieldsOfGemma4StandForNumbersOfSingleLayers) {
  for (const char* name : {"hf/gemma4_text", "hf/gemma4_moe"}) {
    ModelFiles files = ModelFiles::read(fixture(name));
    const std::vector<int32_t> ids = prompt(name);
    const std::vector<float> expected = logits_of(fixture(name), ids);
    files.config.erase("per_layer_config");
    files.config["global_head_dim"] = 64;
    // Counts only where V is made of K, as published for the 26B model.
    files.config["num_global_key_value_heads"] = 1;
    files.config.erase("rope_parameters");  // the fixture's are the defaults
    EXPECT_TRUE(same_bits(logits_of(write(files), ids), expected)) << name;
  }
}

TEST_F(GemmaVariants, ProjectionsThatSharingLayersDoNotUseAreIgnored) {
  ModelFiles files = ModelFiles::read(fixture("hf/gemma4_text"));
  for (const char* name : {"k_proj", "v_proj"}) {
    const std::string from = concat("model.layers.0.self_attn.", name, ".weight");
    files.tensors[concat("model.layers.3.self_attn.", name, ".weight")] = files.tensors.at(from);
  }
  const std::vector<int32_t> ids = prompt("hf/gemma4_text");
  EXPECT_TRUE(same_bits(logits_of(write(files), ids), logits_of(fixture("hf/gemma4_text"), ids)));
}

using weir::testing::GgufBytes;

TEST_F(GemmaVariants, PeriodsAndDefaultsOfGgufStandForAListOfWindows) {
  const std::vector<int32_t> ids = prompt("hf/gemma3_text");
  GgufBytes gguf = read_gguf(fixture("gguf/gemma3_text-bf16.gguf"));
  ModelFiles files = ModelFiles::read(fixture("hf/gemma3_text"));
  files.config["query_pre_attn_scalar"] = 32;
  files.config.erase("layer_types");
  const std::string path = (folder_.path() / "m.gguf").string();
  const std::string key = "gemma3.attention.sliding_window_pattern";
  for (const uint32_t period : {2u, 1u, 6u}) {
    files.config["sliding_window_pattern"] = period;
    gguf.set(key, weir::testing::gguf_u32(period));
    if (period == 6) gguf.erase(key);
    write_gguf(gguf, path);
    EXPECT_TRUE(same_bits(logits_of(path, ids), logits_of(write(files), ids))) << period;
  }
}

TEST_F(GemmaVariants, GateAndUpOfExpertsMayBeTensorsOfTheirOwnInGguf) {
  const std::vector<int32_t> ids = prompt("hf/gemma4_moe");
  GgufBytes gguf = read_gguf(fixture("gguf/gemma4_moe-bf16.gguf"));
  for (int layer = 0; layer < 5; ++layer) {
    const std::string block = concat("blk.", layer, ".");
    const GgufBytes::RawTensor fused = gguf.tensor(block + "ffn_gate_up_exps.weight");
    gguf.erase_tensor(fused.name);
    const size_t half = fused.data.size() / 16;  // of each of eight experts
    std::string parts[2];
    for (size_t i = 0; i < 16; ++i) parts[i % 2] += fused.data.substr(i * half, half);
    gguf.tensors.push_back({block + "ffn_gate_exps.weight", {64, 32, 8}, fused.type, parts[0], -1});
    gguf.tensors.push_back({block + "ffn_up_exps.weight", {64, 32, 8}, fused.type, parts[1], -1});
  }
  const std::string path = (folder_.path() / "m.gguf").string();
  write_gguf(gguf, path);
  EXPECT_TRUE(same_bits(logits_of(path, ids), logits_of(fixture("hf/gemma4_moe"), ids)));
}

// --- options ---

TEST_F(GemmaVariants, LogitsWithoutACapAreThoseThatTheCapIsAppliedTo) {
  ModelFiles files = ModelFiles::read(fixture("hf/gemma4_text"));
  const std::vector<int32_t> ids = prompt("hf/gemma4_text");
  const std::vector<float> capped = logits_of(fixture("hf/gemma4_text"), ids);
  files.config["final_logit_softcapping"] = nullptr;
  std::vector<float> open = logits_of(write(files), ids);
  EXPECT_FALSE(same_bits(open, capped));
  elementwise_kernel(KernelSet::kReference)(ElementwiseKind::kSoftCap, 30.f, 0, open.data(), nullptr, open.data(),
                                            static_cast<int64_t>(open.size()));
  EXPECT_TRUE(same_bits(open, capped));
}

TEST_F(GemmaVariants, AnUntiedHeadIsReadFromItsOwnTensor) {
  for (const char* name : {"hf/gemma3_text", "hf/gemma4_moe"}) {
    ModelFiles files = ModelFiles::read(fixture(name));
    const std::vector<int32_t> ids = prompt(name);
    const std::vector<float> expected = logits_of(fixture(name), ids);
    files.config["tie_word_embeddings"] = false;
    expect_refused(files, {"lm_head.weight"});
    files.tensors["lm_head.weight"] = files.tensors.at("model.embed_tokens.weight");
    EXPECT_TRUE(same_bits(logits_of(write(files), ids), expected));
    std::ranges::rotate(files.tensors["lm_head.weight"].data, files.tensors["lm_head.weight"].data.begin() + 128);
    EXPECT_FALSE(same_bits(logits_of(write(files), ids), expected));
  }
}

TEST_F(GemmaVariants, ARowReadsOneRowOfThePerLayerTable) {
  const std::unique_ptr<Model> model = Model::load(fixture("hf/gemma4_text"));
  const int64_t table = model->spec.per_layer->table.bytes();
  Engine engine(*model, exact_options(1, 16));
  all_logits(engine, std::vector<int32_t>{5});
  const int64_t all = engine.device().counters().weight_bytes_read;
  const int64_t row = table / model->spec.per_layer->table.out;
  // Norms are read as FP32 that are BF16 in the file: not more than that and the rows of both tables is added.
  EXPECT_LE(all, model->weight_bytes() - table + row + 20000);
  EXPECT_GT(table, 40000);
}

// Shapes that no golden has: odd widths, layers in any order, one KV head or all, with weights from no file.
TEST_F(GemmaVariants, OtherShapesGiveTheSameBitsInStepsOfOneRowAndWithEveryKernel) {
  struct Shape {
    const char* base;
    json::object changes;
  };
  const json::array full_first = {"full_attention", "full_attention", "sliding_attention", "full_attention"};
  const json::array alternating = {"sliding_attention", "full_attention", "full_attention"};
  const json::value none = nullptr;
  const Shape shapes[] = {
      {"hf/gemma3_text",
       {{"hidden_size", 96},
        {"head_dim", 20},
        {"num_attention_heads", 3},
        {"num_key_value_heads", 1},
        {"intermediate_size", 50},
        {"vocab_size", 323},
        {"num_hidden_layers", 4},
        {"layer_types", full_first},
        {"attention_bias", true},
        {"sliding_window", 7}}},
      {"hf/gemma3_text", {{"num_key_value_heads", 4}, {"sliding_window", 1}, {"final_logit_softcapping", 5.0}}},
      {"hf/gemma4_text",
       {{"hidden_size", 96},
        {"hidden_size_per_layer_input", 9},
        {"vocab_size", 101},
        {"num_hidden_layers", 3},
        {"layer_types", alternating},
        {"num_kv_shared_layers", 1},
        {"use_double_wide_mlp", false},
        {"per_layer_config",
         json::object{{"1", json::object{{"head_dim", 24}}}, {"2", json::object{{"head_dim", 24}}}}},
        {"final_logit_softcapping", none}}},
      {"hf/gemma4_moe",
       {{"hidden_size", 96},
        {"num_experts", 5},
        {"top_k_experts", 1},
        {"moe_intermediate_size", 24},
        {"num_hidden_layers", 3},
        {"layer_types", alternating},
        {"hidden_size_per_layer_input", 8},
        {"per_layer_config", json::object{{"1", json::object{{"head_dim", 48}, {"num_key_value_heads", 2}}},
                                          {"2", json::object{{"head_dim", 48}, {"num_key_value_heads", 4}}}}}}},
  };
  for (const Shape& shape : shapes) {
    json::object config = ModelFiles::read(fixture(shape.base)).config;
    for (const auto& [key, value] : shape.changes) config[key] = value;
    const std::filesystem::path path = folder_.path() / concat("config", ++count_, ".json");
    std::ofstream(path) << json::serialize(config);
    const std::unique_ptr<Model> model = Model::generate(path, WeightFormat::kBf16);
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 70; ++i) ids.push_back((i * 37 + 11) % 101);
    std::vector<float> expected;
    for (const KernelSet set : kernel_sets()) {
      for (const int32_t rows : {1, 23, 70}) {
        EngineOptions options = exact_options(rows, 70);
        options.kernels = set;
        Engine engine(*model, options);
        const std::vector<float> logits = all_logits(engine, ids);
        if (expected.empty()) expected = logits;
        EXPECT_TRUE(same_bits(logits, expected)) << shape.base << ", " << kernel_set_name(set) << ", " << rows;
      }
    }
    for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit)) << shape.base;
  }
}

// --- refusals ---

TEST_F(GemmaVariants, WhatIsNotSupportedIsRefusedByName) {
  struct Case {
    const char* base;
    const char* field;
    json::value value;
  };
  const json::object flat = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  const json::object partial = {
      {"full_attention", json::object{{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}};
  const Case cases[] = {
      {"hf/gemma3_text", "attn_logit_softcapping", 50.0},
      {"hf/gemma3_text", "use_bidirectional_attention", true},
      {"hf/gemma4_text", "use_bidirectional_attention", "all"},
      {"hf/gemma3_text", "hidden_activation", "gelu"},
      {"hf/gemma3_text", "layer_types", json::array{"full_attention"}},
      {"hf/gemma3_text", "query_pre_attn_scalar", 0},
      {"hf/gemma3_text", "sliding_window", 0},
      {"hf/gemma3_text", "rope_parameters", flat},
      {"hf/gemma4_text", "partial_rotary_factor", 0},
      {"hf/gemma4_text", "num_kv_shared_layers", 4},
      {"hf/gemma4_text", "num_kv_shared_layers", 5},
      {"hf/gemma4_text", "vocab_size_per_layer_input", 319},
      {"hf/gemma4_text", "per_layer_config", json::object{{"9", json::object{{"head_dim", 64}}}}},
      {"hf/gemma4_text", "sliding_window", json::object{}},
      {"hf/gemma4_text", "per_layer_config", json::object{{"1", json::object{{"head_dim", 64}}}}},
      {"hf/gemma4_moe", "top_k_experts", 9},
      {"hf/gemma4_moe", "num_experts", nullptr},
      {"hf/gemma4_moe", "moe_intermediate_size", nullptr},
  };
  for (const Case& c : cases) {
    ModelFiles files = ModelFiles::read(fixture(c.base));
    if (std::string_view(c.field) == "partial_rotary_factor") {
      files.config["rope_parameters"] = partial;
    } else {
      files.config[c.field] = c.value;
    }
    expect_refused(files, {"config.json", c.field, "expected", "found"});
  }
  ModelFiles files = ModelFiles::read(fixture("hf/gemma4_text"));
  files.config["per_layer_config"].as_object()["1"].as_object()["num_attention_heads"] = 2;
  expect_refused(files, {"per_layer_config.1.num_attention_heads"});
  files = ModelFiles::read(fixture("hf/gemma4_text"));
  files.config["layer_types"].as_array()[4] = "sliding_attention";
  expect_refused(files, {"layer_types", "last"});
  files = ModelFiles::read(fixture("hf/gemma4_moe"));
  files.tensors.erase("model.layers.1.router.scale");
  expect_refused(files, {"model.layers.1.router.scale"});
}

}  // namespace
}  // namespace weir::test
