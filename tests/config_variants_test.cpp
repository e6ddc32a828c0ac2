// What configurations leave out, and what they may not say: defaults as in the families' reference implementations, and
// refusals that name the field.
#include <functional>

#include "base/error.h"
#include "tests/support/fixtures.h"
#include "tests/support/model_files.h"
#include "tests/support/refusals.h"

namespace weir::test {
namespace {

using Change = std::function<void(ModelFiles&)>;

std::unique_ptr<Model> load(const ModelFiles& files) {
  TemporaryFolder folder;
  files.write(folder.path());
  return Model::load(folder.path());  // what is mapped outlives the folder
}

std::unique_ptr<Model> load(const char* name, const Change& change) {
  ModelFiles files = ModelFiles::read(fixture(name));
  change(files);
  return load(files);
}

Change with(const char* key, const boost::json::value& value) {
  return [=](ModelFiles& f) { f.text_config()[key] = value; };
}

Change without(const char* key) {
  return [=](ModelFiles& f) { f.text_config().erase(key); };
}

Change in(const char* object, const char* key, const boost::json::value& value) {
  return [=](ModelFiles& f) { f.text_config()[object].as_object()[key] = value; };
}

std::vector<int64_t> windows(const Model& model) {
  std::vector<int64_t> all;
  for (const LayerSpec& layer : model.spec.layers) all.push_back(std::get<AttentionMixer>(layer.mixer).window);
  return all;
}

TEST(ConfigVariants, TheWindowOfQwensExpertsHasADefaultButNullIsNone) {
  const auto windowed = [](const Change& change) {
    return windows(*load("hf/qwen3_moe", [&](ModelFiles& f) {
      f.config["use_sliding_window"] = true;
      change(f);
    }));
  };
  EXPECT_EQ(windowed(without("sliding_window")), std::vector<int64_t>(4, 4096));
  EXPECT_EQ(windowed(with("sliding_window", nullptr)), std::vector<int64_t>(4, 0));
  EXPECT_EQ(windowed(with("sliding_window", 16)), std::vector<int64_t>(4, 16));
  EXPECT_EQ(windows(*load("hf/qwen3_moe", with("sliding_window", 16))), std::vector<int64_t>(4, 0));
}

TEST(ConfigVariants, GptOssHasAThetaOfItsOwn) {
  const std::unique_ptr<Model> expected = Model::load(fixture("hf/gpt_oss"));
  const std::unique_ptr<Model> found =
      load("hf/gpt_oss", [](ModelFiles& f) { f.config["rope_parameters"].as_object().erase("rope_theta"); });
  EXPECT_EQ(found->spec.ropes[0].inv_freq, expected->spec.ropes[0].inv_freq);
  const std::unique_ptr<Model> other = load("hf/gpt_oss", in("rope_parameters", "rope_theta", 10000));
  EXPECT_NE(other->spec.ropes[0].inv_freq, expected->spec.ropes[0].inv_freq);
}

TEST(ConfigVariants, GptOssWithoutWindowsNeedsNoWindow) {
  const std::unique_ptr<Model> model = load("hf/gpt_oss", [](ModelFiles& f) {
    f.config["layer_types"] = boost::json::array(4, "full_attention");
    f.config["sliding_window"] = nullptr;
  });
  EXPECT_EQ(windows(*model), std::vector<int64_t>(4, 0));
}

TEST(ConfigVariants, CompressedTensorsThatSayNothingSpecialAreTaken) {
  for (const Change& change : {in("quantization_config", "transform_config", boost::json::object{}),
                               in("quantization_config", "sparsity_config", {{"format", "dense"}}),
                               in("quantization_config", "format", nullptr)}) {
    EXPECT_EQ(load("hf/deepseek_v3_fp8_channel", change)->spec.family, "deepseek_v3");
  }
}

TEST(ConfigVariants, ScalarsOfGemmasLayersMayAllBeAbsent) {
  const std::unique_ptr<Model> model = load("hf/gemma4_text", [](ModelFiles& f) {
    EXPECT_EQ(std::erase_if(f.tensors, [](const auto& t) { return t.first.ends_with(".layer_scalar"); }), 5u);
  });
  for (const LayerSpec& layer : model->spec.layers) EXPECT_EQ(layer.scalar, 1);
}

struct Refusal {
  const char* name;
  const char* model;
  Change change;
  std::vector<std::string> message_has;
};

const std::vector<Refusal>& refusals() {
  static const char* kChannel = "hf/deepseek_v3_fp8_channel";
  static const char* kQuantization = "quantization_config";
  static const char* kRope = "rope_parameters";
  const auto weights = [](const char* key, const boost::json::value& value) {
    return [=](ModelFiles& f) {
      boost::json::object& q = f.config[kQuantization].as_object();
      q["format"] = nullptr;
      q["config_groups"].at("group_0").as_object()["weights"].as_object()[key] = value;
    };
  };
  static const std::vector<Refusal> all = {
      {"GptOssWithoutRope", "hf/gpt_oss", without(kRope), {"rope_parameters", "rope_scaling"}},
      {"GptOssWindowNull", "hf/gpt_oss", with("sliding_window", nullptr), {"sliding_window", "null"}},
      {"GptOssLimitNull", "hf/gpt_oss", with("swiglu_limit", nullptr), {"swiglu_limit", "null"}},
      {"RotatedWeights", kChannel, in(kQuantization, "transform_config", {{"config_groups", 1}}), {"transform_config"}},
      {"PrunedWeights",
       kChannel,
       in(kQuantization, "sparsity_config", {{"format", "sparse-24-bitmask"}}),
       {"quantization_config.sparsity_config.format", "dense", "sparse-24-bitmask"}},
      {"QuantisedCache", kChannel, in(kQuantization, "kv_cache_scheme", {{"num_bits", 8}}), {"kv_cache_scheme"}},
      {"GroupsInChannels", kChannel, weights("group_size", 128), {"weights.group_size", "128"}},
      {"FormatNullIsNoPassport", kChannel, weights("num_bits", 4), {"weights.num_bits", "4"}},
      {"NoGroups", kChannel, in(kQuantization, "config_groups", boost::json::object{}), {"config_groups", "E4M3"}},
      {"NotRenormalised", "hf/qwen3_5_moe", with("norm_topk_prob", false), {"norm_topk_prob", "false"}},
      {"SparseStep", "hf/qwen3_5_moe", with("decoder_sparse_step", 2), {"decoder_sparse_step", "2"}},
      {"DenseLayers", "hf/qwen3_5_moe", with("mlp_only_layers", {0}), {"mlp_only_layers"}},
      {"PartOfAHead", "hf/llama", with("partial_rotary_factor", 0.5), {"partial_rotary_factor", "0.5"}},
      {"PartOfAHeadInRope",
       "hf/qwen3_moe",
       in(kRope, "partial_rotary_factor", 0.5),
       {"rope_parameters.partial_rotary_factor", "0.5"}},
      {"PartOfMla", "hf/deepseek_v3", with("partial_rotary_factor", 0.5), {"partial_rotary_factor"}},
      {"TwoRopeTypes", "hf/qwen3", in(kRope, "type", "linear"), {"rope_parameters.type", "default", "linear"}},
      {"RampBackwards", "hf/gpt_oss", in(kRope, "beta_fast", 0.5), {"rope_parameters.beta_fast", "beta_slow", "0.5"}},
      {"ScalarMissing",
       "hf/gemma4_text",
       [](ModelFiles& f) { f.tensors.erase("model.layers.2.layer_scalar"); },
       {"model.layers.2.layer_scalar"}},
      {"FirstScalarMissing",
       "hf/gemma4_text",
       [](ModelFiles& f) { f.tensors.erase("model.layers.0.layer_scalar"); },
       {"layer_scalar"}},
      {"NoScaleOfFp8",
       "hf/qwen3_ragged_fp8_block",
       [](ModelFiles& f) { f.tensors.erase("model.layers.0.mlp.up_proj.weight_scale_inv"); },
       {"up_proj.weight_scale_inv", "up_proj.weight_scale:"}},
      {"LayerTypeByIndex",
       "hf/gpt_oss",
       [](ModelFiles& f) { f.config["layer_types"].as_array()[2] = "mystery"; },
       {"layer_types[2]", "sliding_attention", "mystery"}},
  };
  return all;
}

class BadConfig : public testing::TestWithParam<Refusal> {};

TEST_P(BadConfig, IsRefusedByName) { expect_refused(GetParam().model, GetParam().change, GetParam().message_has); }

INSTANTIATE_TEST_SUITE_P(Cases, BadConfig, testing::ValuesIn(refusals()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace weir::test
