// GGUF files that say the same thing in another way give the same bits; ones that say something wrong are refused with
// a message that names it.
#include <functional>

#include "base/number.h"
#include "formats/quant.h"
#include "tests/support/fixtures.h"
#include "tests/support/gguf_files.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

using weir::testing::GgufBytes;

std::vector<float> logits_of(const std::filesystem::path& path, const std::vector<int32_t>& ids) {
  const std::unique_ptr<Model> model = Model::load(path);
  Engine engine(*model, exact_options(64, static_cast<int64_t>(ids.size())));
  return all_logits(engine, ids);
}

std::vector<int32_t> prompt(const char* folder) {
  std::vector<int32_t> ids = Golden(fixture(folder) + "/golden.safetensors").ids("prompt_a.ids");
  ids.resize(64);
  return ids;
}

// Rewrites a tensor in another type; exact for types that hold its values.
void convert(GgufBytes::RawTensor& tensor, uint32_t to) {
  int64_t n = 1;
  for (int64_t d : tensor.ne) n *= d;
  std::vector<float> values(static_cast<size_t>(n));
  dequantize_row(find_ggml_type(tensor.type)->format, reinterpret_cast<const std::byte*>(tensor.data.data()), n,
                 values.data());
  tensor.data.clear();
  for (float x : values) {
    if (to == 0) tensor.data += weir::testing::raw(x);
    if (to == 1) tensor.data += weir::testing::raw(f32_to_f16(x));
    if (to == 30) tensor.data += weir::testing::raw(f32_to_bf16(x));
  }
  tensor.type = to;
}

class GgufVariants : public ::testing::Test {
 protected:
  std::filesystem::path write(const GgufBytes& file, const char* name = "m.gguf") {
    write_gguf(file, folder_.path() / name);
    return folder_.path() / name;
  }
  TemporaryFolder folder_;
};

TEST_F(GgufVariants, TheFixturesSurviveRewriting) {
  const std::vector<int32_t> ids = prompt("hf/qwen3");
  const GgufBytes file = read_gguf(fixture("gguf/qwen3-bf16.gguf"));
  EXPECT_TRUE(same_bits(logits_of(write(file), ids), logits_of(fixture("hf/qwen3"), ids)));
}

TEST_F(GgufVariants, AnyFloatTypeIsAcceptedForAnyTensor) {
  for (const char* name : {"qwen2", "kimi_linear"}) {
    const std::vector<int32_t> ids = prompt(concat("hf/", name).c_str());
    const std::string path = fixture(concat("gguf/", name, "-bf16.gguf"));
    GgufBytes file = read_gguf(path);
    const std::vector<float> expected = logits_of(path, ids);
    for (auto& tensor : file.tensors) convert(tensor, 0);  // exact
    EXPECT_TRUE(same_bits(logits_of(write(file), ids), expected)) << name;
    for (auto& tensor : file.tensors) convert(tensor, 1);  // rounded
    for (float x : logits_of(write(file), ids)) ASSERT_TRUE(std::isfinite(x)) << name;
  }
}

TEST_F(GgufVariants, QuantisedFilesGiveTheBitsOfTheirDecodedValues) {
  const std::vector<int32_t> ids = prompt("hf/llama");  // ids below both vocabularies
  for (const char* name : {"gguf/llama-q8_0.gguf", "gguf/k3-tiny-mxfp4.gguf"}) {
    GgufBytes file = read_gguf(fixture(name));
    int blocks = 0;
    for (auto& tensor : file.tensors) {
      blocks += find_ggml_type(tensor.type)->elements > 1;
      convert(tensor, 0);
    }
    EXPECT_GE(blocks, 18) << name;
    EXPECT_TRUE(same_bits(logits_of(write(file), ids), logits_of(fixture(name), ids))) << name;
  }
}

TEST_F(GgufVariants, ScalarsOfOtherWidthsAndADefaultAlignmentOfOthers) {
  GgufBytes file = read_gguf(fixture("gguf/qwen3-bf16.gguf"));
  file.set("qwen3.block_count", weir::testing::gguf_value<uint8_t>(GgufType::kU8, 4));
  file.set("qwen3.embedding_length", weir::testing::gguf_value<int64_t>(GgufType::kI64, 64));
  file.set("qwen3.attention.head_count", weir::testing::gguf_value<uint64_t>(GgufType::kU64, 4));
  file.set("qwen3.rope.freq_base", weir::testing::gguf_value<double>(GgufType::kF64, 1e6));
  file.set("general.alignment", weir::testing::gguf_u32(256));
  file.alignment = 256;
  file.version = 2;
  const std::vector<int32_t> ids = prompt("hf/qwen3");
  EXPECT_TRUE(same_bits(logits_of(write(file), ids), logits_of(fixture("hf/qwen3"), ids)));
}

TEST_F(GgufVariants, FusedQkvGivesTheBitsOfSeparateMatrices) {
  for (const char* name : {"llama", "qwen2"}) {
    const std::vector<int32_t> ids = prompt(concat("hf/", name).c_str());
    const std::string path = fixture(concat("gguf/", name, "-bf16.gguf"));
    GgufBytes file = read_gguf(path);
    for (int i = 0; i < 4; ++i) {
      const std::string block = concat("blk.", i, ".");
      for (const char* suffix : {".weight", ".bias"}) {
        const std::string q = block + "attn_q" + suffix;
        if (std::ranges::none_of(file.tensors, [&](const auto& t) { return t.name == q; })) continue;
        GgufBytes::RawTensor fused = file.tensor(q);
        fused.name = block + "attn_qkv" + suffix;
        for (const char* part : {"attn_k", "attn_v"}) {
          const GgufBytes::RawTensor& more = file.tensor(block + part + suffix);
          fused.data += more.data;
          fused.ne.back() += more.ne.back();
        }
        for (const char* part : {"attn_q", "attn_k", "attn_v"}) file.erase_tensor(block + part + suffix);
        file.tensors.push_back(fused);
      }
    }
    EXPECT_TRUE(same_bits(logits_of(write(file), ids), logits_of(path, ids))) << name;
  }
}

TEST_F(GgufVariants, AnUntiedHeadIsUsed) {
  GgufBytes file = read_gguf(fixture("gguf/qwen3-bf16.gguf"));
  GgufBytes::RawTensor head = file.tensor("token_embd.weight");
  head.name = "output.weight";
  file.tensors.push_back(head);
  const std::vector<int32_t> ids = prompt("hf/qwen3");
  EXPECT_TRUE(same_bits(logits_of(write(file), ids), logits_of(fixture("hf/qwen3"), ids)));
  for (char& c : file.tensor("output.weight").data) c = 0;
  for (float x : logits_of(write(file), ids)) ASSERT_EQ(x, 0);
}

TEST_F(GgufVariants, AFolderWithOneModelAndASplitModelGiveTheBitsOfTheFile) {
  const std::vector<int32_t> ids = prompt("hf/qwen3");
  const std::vector<float> expected = logits_of(fixture("hf/qwen3"), ids);
  const GgufBytes whole = read_gguf(fixture("gguf/qwen3-bf16.gguf"));
  write(whole);
  EXPECT_TRUE(same_bits(logits_of(folder_.path(), ids), expected));
  std::filesystem::remove(folder_.path() / "m.gguf");
  for (uint16_t i = 0; i < 2; ++i) {
    GgufBytes part;
    if (i == 0) part = whole;
    part.tensors.clear();
    for (size_t t = i; t < whole.tensors.size(); t += 2) part.tensors.push_back(whole.tensors[t]);
    part.set("split.no", weir::testing::gguf_value(GgufType::kU16, i));
    part.set("split.count", weir::testing::gguf_value<uint16_t>(GgufType::kU16, 2));
    write(part, i == 0 ? "m-00001-of-00002.gguf" : "m-00002-of-00002.gguf");
  }
  EXPECT_TRUE(same_bits(logits_of(folder_.path(), ids), expected));
  EXPECT_TRUE(same_bits(logits_of(folder_.path() / "m-00002-of-00002.gguf", ids), expected));
}

TEST_F(GgufVariants, LlamaRowsAreTakenInThePublishedOrder) {
  // With the folder's frequencies (the file's factors round some of them differently) all bits agree.
  const std::vector<int32_t> ids = prompt("hf/llama");
  const std::unique_ptr<Model> model = Model::load(fixture("gguf/llama-bf16.gguf"));
  const std::unique_ptr<Model> folder = Model::load(fixture("hf/llama"));
  const FloatVector& expected = folder->spec.ropes.at(0).inv_freq;
  FloatVector& found = model->spec.ropes.at(0).inv_freq;
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1.3e-7f * expected[i]) << i;
  found = expected;
  Engine engine(*model, exact_options(64, 64));
  EXPECT_TRUE(same_bits(all_logits(engine, ids), logits_of(fixture("hf/llama"), ids)));
}

TEST_F(GgufVariants, OlderKimiFilesWithOneKvMatrixGiveTheBitsOfTheFolder) {
  GgufBytes file = read_gguf(fixture("gguf/kimi_linear-bf16.gguf"));
  const std::unique_ptr<Model> folder = Model::load(fixture("hf/kimi_linear"));
  const Tensor& kv_b = *folder->checkpoint()->find("model.layers.3.self_attn.kv_b_proj.weight");
  file.erase_tensor("blk.3.attn_k_b.weight");
  file.erase_tensor("blk.3.attn_v_b.weight");
  file.tensors.push_back({"blk.3.attn_kv_b.weight",
                          {kv_b.shape[1], kv_b.shape[0]},
                          30,
                          std::string(reinterpret_cast<const char*>(kv_b.data), static_cast<size_t>(kv_b.bytes)),
                          -1});
  const std::unique_ptr<Model> model = Model::load(write(file));
  for (size_t i = 0; i < model->spec.layers.size(); ++i) {  // e^(A_log), which the converter rounded its own way
    auto* found = std::get_if<KdaMixer>(&model->spec.layers[i].mixer);
    const auto* expected = std::get_if<KdaMixer>(&folder->spec.layers[i].mixer);
    ASSERT_EQ(found == nullptr, expected == nullptr);
    if (found == nullptr) continue;
    ASSERT_EQ(found->a.size(), expected->a.size());
    for (size_t h = 0; h < found->a.size(); ++h) EXPECT_NEAR(found->a[h], expected->a[h], 1.3e-7f * expected->a[h]);
    found->a = expected->a;
  }
  const std::vector<int32_t> ids = prompt("hf/kimi_linear");
  Engine engine(*model, exact_options(64, 64));
  EXPECT_TRUE(same_bits(all_logits(engine, ids), logits_of(fixture("hf/kimi_linear"), ids)));
}

TEST_F(GgufVariants, OptionsThatSayNothingAreTaken) {
  GgufBytes file = read_gguf(fixture("gguf/qwen3-bf16.gguf"));
  const auto set = [&](const std::string& key, const std::string& value) { file.set("qwen3." + key, value); };
  using weir::testing::gguf_f32;
  set("attention.causal", weir::testing::gguf_bool(true));
  set("expert_group_count", weir::testing::gguf_u32(1));
  set("attention.sliding_window", weir::testing::gguf_u32(1 << 24));
  for (const char* key : {"logit_scale", "residual_scale", "embedding_scale", "rope.scaling.attn_factor"}) {
    set(key, gguf_f32(1));
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv",
                          "attention.max_alibi_bias", "attention.scale"}) {
    set(key, gguf_f32(0));
  }
  const std::vector<int32_t> ids = prompt("hf/qwen3");
  EXPECT_TRUE(same_bits(logits_of(write(file), ids), logits_of(fixture("hf/qwen3"), ids)));
}

struct BadCase {
  const char* name;
  const char* model;
  std::function<void(GgufBytes&)> spoil;
  std::vector<std::string> message_has;
};

const std::vector<BadCase>& bad_cases() {
  const auto set = [](const char* key, std::string value) { return [key, value](GgufBytes& f) { f.set(key, value); }; };
  const auto erase = [](const char* key) { return [key](GgufBytes& f) { f.erase(key); }; };
  const auto u32 = [](uint32_t v) { return weir::testing::gguf_u32(v); };
  static const char* kQwen2 = "qwen2-bf16";
  static const char* kQwen3 = "qwen3-bf16";
  static const char* kLlama = "llama-bf16";
  static const char* kLinear = "kimi_linear-bf16";
  static const std::vector<BadCase> cases = {
      {"UnknownArchitecture",
       kQwen3,
       set("general.architecture", weir::testing::gguf_text("mamba9")),
       {"general.architecture", "mamba9", "kimi-k3", "qwen3"}},
      {"NoArchitecture", kQwen3, erase("general.architecture"), {"general.architecture", "no such key"}},
      {"Adapter", kQwen3, set("general.type", weir::testing::gguf_text("adapter")), {"general.type", "adapter"}},
      {"MissingTensor",
       kQwen3,
       [](GgufBytes& f) { f.erase_tensor("blk.2.ffn_up.weight"); },
       {"blk.2.ffn_up.weight", "found in no file"}},
      {"MissingEmbedding", kQwen3, [](GgufBytes& f) { f.erase_tensor("token_embd.weight"); }, {"token_embd.weight"}},
      {"MissingBias", kQwen2, [](GgufBytes& f) { f.erase_tensor("blk.2.attn_k.bias"); }, {"blk.2.attn_k.bias"}},
      {"MissingHeadNorm", kQwen3, [](GgufBytes& f) { f.erase_tensor("blk.1.attn_k_norm.weight"); }, {"blk.1.attn_k_norm"}},
      {"BiasOnTheOutputAlone",
       kQwen2,
       [](GgufBytes& f) { f.tensors.push_back({"blk.1.attn_output.bias", {96}, 0, std::string(384, '\0'), -1}); },
       {"blk.1.attn_output.bias", "no such tensor"}},
      {"ExtraTensor",
       kQwen3,
       [](GgufBytes& f) { f.tensors.push_back({"blk.0.surprise\n", {8}, 0, std::string(32, '\0'), -1}); },
       {"blk.0.surprise\\x0a", "no such tensor"}},
      {"ExtraLayer", kQwen3, set("qwen3.block_count", u32(3)), {"blk.3."}},
      {"WrongShape",
       kQwen3,
       [](GgufBytes& f) {
         auto& t = f.tensor("output_norm.weight");
         t.ne = {32};
         t.data.resize(128);
       },
       {"output_norm.weight", "[64]", "[32]"}},
      {"TransposedMatrix",
       kQwen3,
       [](GgufBytes& f) {
         auto& t = f.tensor("blk.0.ffn_up.weight");
         std::swap(t.ne[0], t.ne[1]);
       },
       {"blk.0.ffn_up.weight", "[192, 64]", "[64, 192]"}},
      {"MissingKey", kQwen3, erase("qwen3.embedding_length"), {"qwen3.embedding_length", "no such key"}},
      {"ZeroLayers", kQwen3, set("qwen3.block_count", u32(0)), {"qwen3.block_count", "found 0"}},
      {"HugeWidth", kQwen3, set("qwen3.embedding_length", u32(1u << 30)), {"qwen3.embedding_length", "1073741824"}},
      {"TextForANumber",
       kQwen3,
       set("qwen3.attention.head_count", weir::testing::gguf_text("4")),
       {"qwen3.attention.head_count", "string '4'"}},
      {"UnevenGroups", kQwen3, set("qwen3.attention.head_count_kv", u32(3)), {"head_count_kv", "found 3"}},
      {"OtherValueLength", kQwen3, set("qwen3.attention.value_length", u32(16)), {"value_length", "32", "16"}},
      {"EpsNotANumber", kQwen3, set("qwen3.attention.layer_norm_rms_epsilon", weir::testing::gguf_f32(NAN)), {"epsilon"}},
      {"LongRope",
       kQwen3,
       set("qwen3.rope.scaling.type", weir::testing::gguf_text("longrope")),
       {"rope.scaling.type", "longrope", "yarn"}},
      {"YarnWithoutFactor",
       kQwen3,
       set("qwen3.rope.scaling.type", weir::testing::gguf_text("yarn")),
       {"qwen3.rope.scaling.factor"}},
      {"OddRotation", kQwen3, set("qwen3.rope.dimension_count", u32(15)), {"rope.dimension_count", "even"}},
      {"VocabDisagrees", kLlama, set("llama.vocab_size", u32(511)), {"llama.vocab_size", "512", "511"}},
      {"MoreTokensThanRows",
       kQwen3,
       set("tokenizer.ggml.tokens", weir::testing::gguf_texts(std::vector<std::string>(385, "x"))),
       {"tokenizer.ggml.tokens", "384", "385"}},
      {"StopTokenOutside", kQwen3, set("tokenizer.ggml.eos_token_id", u32(384)), {"eos_token_id", "384"}},
      {"Mixtral", kLlama, set("llama.expert_count", u32(8)), {"llama.expert_count", "found 8"}},
      {"ShortFactors",
       kLlama,
       [](GgufBytes& f) {
         auto& t = f.tensor("rope_freqs.weight");
         t.ne = {8};
         t.data.resize(32);
       },
       {"rope_freqs.weight", "[16]", "[8]"}},
      {"NoGatingFunction", kLinear, erase("kimi-linear.expert_gating_func"), {"expert_gating_func", "no such key"}},
      {"SoftmaxRouter", kLinear, set("kimi-linear.expert_gating_func", u32(1)), {"expert_gating_func", "sigmoid", "1"}},
      {"LayerListShort",
       kLinear,
       set("kimi-linear.attention.head_count_kv", weir::testing::gguf_i32s({0, 0, 0, 1})),
       {"head_count_kv", "array of 5", "array of 4"}},
      {"OtherLayerKinds",
       kLinear,
       set("kimi-linear.attention.head_count_kv", weir::testing::gguf_i32s({0, 0, 1, 1, 0})),
       {"blk.2."}},
      {"KeyShorterThanItsRotatedPart",
       kLinear,
       set("kimi-linear.attention.key_length_mla", u32(8)),
       {"key_length_mla", "more than", "found 8"}},
      {"TooManyExpertsChosen", kLinear, set("kimi-linear.expert_used_count", u32(9)), {"expert_used_count", "9"}},
      {"FewerExpertsThanSaid",
       kLinear,
       set("kimi-linear.expert_count", u32(16)),
       {"blk.1.", "[16, ", "[8, "}},
      {"KdaHeadsDisagree",
       kLinear,
       [](GgufBytes& f) {
         auto& t = f.tensor("blk.0.ssm_a");
         t.ne = {1, 3};
         t.data.resize(12);
       },
       {"blk.0."}},
      {"PredictionHeadWithoutOne",
       "deepseek_v3-bf16",
       set("deepseek2.nextn_predict_layers", u32(1)),
       {"deepseek2.nextn_predict_layers", "blk.3.nextn."}},
      {"PredictionHeadWithoutOneGlm",
       "glm_moe_dsa-bf16",
       set("glm-dsa.nextn_predict_layers", u32(1)),
       {"glm-dsa.nextn_predict_layers", "blk.3.nextn."}},
      {"PredictionHeadWithoutOneQwen",
       "qwen3_next-bf16",
       set("qwen3next.nextn_predict_layers", u32(1)),
       {"qwen3next.nextn_predict_layers", "blk.4.nextn."}},
      {"AttentionFactorWithoutYarn",
       kQwen3,
       set("qwen3.rope.scaling.attn_factor", weir::testing::gguf_f32(0.5f)),
       {"qwen3.rope.scaling.attn_factor", "yarn"}},
      {"RampBackwards",
       kQwen3,
       [](GgufBytes& f) {
         f.set("qwen3.rope.scaling.type", weir::testing::gguf_text("yarn"));
         f.set("qwen3.rope.scaling.factor", weir::testing::gguf_f32(4));
         f.set("qwen3.rope.scaling.yarn_beta_fast", weir::testing::gguf_f32(0.5f));
       },
       {"qwen3.rope.scaling.yarn_beta_fast", "yarn_beta_slow"}},
      {"ExtrapolationWithoutYarn",
       kQwen3,
       set("qwen3.rope.scaling.yarn_ext_factor", weir::testing::gguf_f32(0.5f)),
       {"qwen3.rope.scaling.yarn_ext_factor", "0.5"}},
      {"YarnAttentionFactor",
       kQwen3,
       set("qwen3.rope.scaling.yarn_attn_factor", weir::testing::gguf_f32(0.5f)),
       {"qwen3.rope.scaling.yarn_attn_factor", "0.5"}},
      {"NotCausal", kLlama, set("llama.attention.causal", weir::testing::gguf_bool(false)), {"llama.attention.causal"}},
      {"GroupsOfExperts",
       "qwen3_moe-bf16",
       set("qwen3moe.expert_group_count", u32(2)),
       {"qwen3moe.expert_group_count", "2"}},
      {"Softcap",
       kLlama,
       set("llama.attn_logit_softcapping", weir::testing::gguf_f32(50)),
       {"llama.attn_logit_softcapping", "50"}},
      {"SoftcapOfScoresInGemma",
       "gemma3_text-bf16",
       set("gemma3.attn_logit_softcapping", weir::testing::gguf_f32(50)),
       {"gemma3.attn_logit_softcapping"}},
      {"LogitScale", kLinear, set("kimi-linear.logit_scale", weir::testing::gguf_f32(0.5f)), {"logit_scale"}},
      {"ResidualScale", kLlama, set("llama.residual_scale", weir::testing::gguf_f32(0.5f)), {"residual_scale"}},
      {"EmbeddingScale",
       "gpt_oss-mxfp4",
       set("gpt-oss.embedding_scale", weir::testing::gguf_f32(12)),
       {"gpt-oss.embedding_scale"}},
      {"ClampedQkv", kLlama, set("llama.attention.clamp_kqv", weir::testing::gguf_f32(8)), {"attention.clamp_kqv"}},
      {"Alibi", kLlama, set("llama.attention.max_alibi_bias", weir::testing::gguf_f32(8)), {"max_alibi_bias"}},
      {"AttentionScale",
       "deepseek_v3-bf16",
       set("deepseek2.attention.scale", weir::testing::gguf_f32(0.5f)),
       {"deepseek2.attention.scale"}},
      {"AttentionScaleOfGemma",
       "gemma4_text-bf16",
       set("gemma4.attention.scale", weir::testing::gguf_f32(0.5f)),
       {"gemma4.attention.scale", "0.5"}},
      {"Window", kLlama, set("llama.attention.sliding_window", u32(16)), {"llama.attention.sliding_window", "16"}},
      {"WindowOfExperts", "qwen3_moe-bf16", set("qwen3moe.attention.sliding_window", u32(16)), {"sliding_window"}},
      {"NotAGguf", kQwen3, [](GgufBytes& f) { f.magic = "PK\3\4"; }, {"not a GGUF file"}},
  };
  return cases;
}

class BadGgufModel : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadGgufModel, IsRefusedByName) {
  GgufBytes file = read_gguf(fixture(concat("gguf/", GetParam().model, ".gguf")));
  GetParam().spoil(file);
  TemporaryFolder folder;
  write_gguf(file, folder.path() / "bad.gguf");
  try {
    Model::load(folder.path() / "bad.gguf");
    FAIL() << "was accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string& part : GetParam().message_has) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_NE(message.find("bad.gguf"), std::string::npos) << "names no file: " << message;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, BadGgufModel, ::testing::ValuesIn(bad_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace weir::test
