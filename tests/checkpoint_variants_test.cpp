// Checkpoints that say the same thing in another way give the same bits; ones that say something wrong are refused with
// a message that names it.
#include <functional>

#include "base/number.h"
#include "tests/support/fixtures.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

std::vector<float> logits_of(const std::filesystem::path& folder, const std::vector<int32_t>& ids) {
  const std::unique_ptr<Model> model = Model::load(folder);
  Engine engine(*model, exact_options(64, static_cast<int64_t>(ids.size())));
  return all_logits(engine, ids);
}

// Values of a small float tensor, and back in another dtype.
std::vector<float> values(const RawTensor& t) {
  std::vector<float> out;
  if (t.dtype == "F32") {
    out.resize(t.data.size() / 4);
    std::memcpy(out.data(), t.data.data(), t.data.size());
    return out;
  }
  for (size_t i = 0; i < t.data.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, t.data.data() + i, 2);
    out.push_back(t.dtype == "BF16" ? bf16_to_f32(bits) : f16_to_f32(bits));
  }
  return out;
}

RawTensor encode(const std::vector<float>& v, const std::string& dtype, std::vector<int64_t> shape) {
  RawTensor t{dtype, std::move(shape), {}};
  for (float x : v) {
    if (dtype == "F32") {
      const auto* p = reinterpret_cast<const std::byte*>(&x);
      t.data.insert(t.data.end(), p, p + 4);
    } else {
      const uint16_t bits = dtype == "BF16" ? f32_to_bf16(x) : f32_to_f16(x);
      const auto* p = reinterpret_cast<const std::byte*>(&bits);
      t.data.insert(t.data.end(), p, p + 2);
    }
  }
  return t;
}

std::vector<int32_t> prompt(const char* folder, const char* name) {
  std::vector<int32_t> ids = Golden(fixture(folder) + "/golden.safetensors").ids(name);
  ids.resize(64);
  return ids;
}

TEST(CheckpointVariants, UnpackedExpertsGiveTheBitsOfPackedOnes) {
  ModelFiles files = ModelFiles::read(fixture("kimi_k3/k3-tiny"));
  std::map<std::string, RawTensor> unpacked;
  int experts = 0;
  for (auto& [name, tensor] : files.tensors) {
    if (name.ends_with(".weight_scale")) continue;
    if (!name.ends_with(".weight_packed")) {
      unpacked[name] = tensor;
      continue;
    }
    const std::string stem = name.substr(0, name.size() - std::string("_packed").size());
    const RawTensor& scales = files.tensors.at(stem + "_scale");
    std::vector<float> v;
    for (size_t i = 0; i < tensor.data.size(); ++i) {
      const auto byte = static_cast<unsigned>(tensor.data[i]);
      const float scale = e8m0_to_f32(static_cast<uint8_t>(scales.data[i / 16]));
      v.push_back(kE2m1[byte & 15] * scale);
      v.push_back(kE2m1[byte >> 4] * scale);
    }
    unpacked[stem] = encode(v, "BF16", {tensor.shape[0], tensor.shape[1] * 2});
    EXPECT_EQ(values(unpacked[stem]), v) << "MXFP4 values are exact in BF16";
    ++experts;
  }
  ASSERT_GT(experts, 100);
  files.tensors = std::move(unpacked);
  TemporaryFolder folder;
  files.write(folder.path());
  const std::vector<int32_t> ids = prompt("kimi_k3/k3-tiny", "prompt97.tokens");
  EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), logits_of(fixture("kimi_k3/k3-tiny"), ids)));
}

TEST(CheckpointVariants, AnyFloatDtypeIsAcceptedForAnyFloatTensor) {
  for (const char* fixture_name : {"kimi_k3/k3-tiny", "hf/llama"}) {
    const std::vector<int32_t> ids =
        prompt(fixture_name, std::string(fixture_name).starts_with("kimi") ? "prompt97.tokens" : "prompt_a.ids");
    ModelFiles files = ModelFiles::read(fixture(fixture_name));
    for (auto& [name, tensor] : files.tensors) {
      if (tensor.dtype == "BF16") tensor = encode(values(tensor), "F32", tensor.shape);  // exact: the bits must agree
    }
    TemporaryFolder folder;
    files.write(folder.path());
    const std::vector<float> expected = logits_of(fixture(fixture_name), ids);
    EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), expected));
    for (auto& [name, tensor] : files.tensors) {
      if (tensor.dtype == "F32") tensor = encode(values(tensor), "F16", tensor.shape);
    }
    files.write(folder.path());
    const std::vector<float> rounded = logits_of(folder.path(), ids);  // 11 bits of mantissa: near, not equal
    for (float x : rounded) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST(CheckpointVariants, BothGenerationsOfConfigGiveTheSameBits) {
  for (const char* name : {"hf/kimi_linear", "hf/llama", "hf/qwen2", "hf/qwen3"}) {
    TemporaryFolder folder;
    for (const auto& entry : std::filesystem::directory_iterator(fixture(name))) {
      if (entry.path().filename().string().starts_with("model")) {
        std::filesystem::copy(entry.path(), folder.path() / entry.path().filename());
      }
    }
    std::filesystem::copy(fixture(name) + "/config.hub.json", folder.path() / "config.json");
    const std::vector<int32_t> ids = prompt(name, "prompt_a.ids");
    EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), logits_of(fixture(name), ids))) << name;
  }
}

TEST(CheckpointVariants, TiedEmbeddingsServeAsHead) {
  ModelFiles files = ModelFiles::read(fixture("hf/llama"));
  files.tensors.at("lm_head.weight") = files.tensors.at("model.embed_tokens.weight");
  TemporaryFolder twice, tied;
  files.write(twice.path());
  files.tensors.erase("lm_head.weight");
  files.config["tie_word_embeddings"] = true;
  files.write(tied.path());
  const std::vector<int32_t> ids = prompt("hf/llama", "prompt_a.ids");
  EXPECT_TRUE(same_bits(logits_of(tied.path(), ids), logits_of(twice.path(), ids)));
}

TEST(CheckpointVariants, AHeadInTheFileCountsThoughTheConfigurationTiesIt) {
  ModelFiles files = ModelFiles::read(fixture("hf/llama"));
  files.config["tie_word_embeddings"] = true;
  TemporaryFolder folder;
  files.write(folder.path());
  const std::vector<int32_t> ids = prompt("hf/llama", "prompt_a.ids");
  EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), logits_of(fixture("hf/llama"), ids)));
}

TEST(CheckpointVariants, APaddedALogGivesTheBitsOfABareOne) {
  ModelFiles files = ModelFiles::read(fixture("hf/kimi_linear"));
  RawTensor& a_log = files.tensors.at("model.layers.0.self_attn.A_log");
  std::vector<float> padded = values(a_log);
  padded.resize(padded.size() + 3, 0.f);
  a_log = encode(padded, "F32", {static_cast<int64_t>(padded.size())});
  TemporaryFolder folder;
  files.write(folder.path());
  const std::vector<int32_t> ids = prompt("hf/kimi_linear", "prompt_a.ids");
  EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), logits_of(fixture("hf/kimi_linear"), ids)));
}

TEST(CheckpointVariants, LayerPatternsAreFreeAndCountedFromOne) {
  // Full attention first and two in a row, in both notations.
  ModelFiles files = ModelFiles::read(fixture("hf/kimi_linear"));
  TemporaryFolder by_types, by_lists;
  const auto move_layer = [&](int from, int to, std::map<std::string, RawTensor>& out) {
    const std::string a = concat("model.layers.", from, ".self_attn."), b = concat("model.layers.", to, ".self_attn.");
    for (const auto& [name, t] : files.tensors) {
      if (name.starts_with(a)) out[b + name.substr(a.size())] = t;
    }
  };
  std::map<std::string, RawTensor> tensors;
  for (const auto& [name, t] : files.tensors) {
    if (name.find(".self_attn.") == std::string::npos) tensors[name] = t;
  }
  move_layer(3, 0, tensors);  // the only full layer
  move_layer(3, 1, tensors);
  move_layer(0, 2, tensors);
  move_layer(1, 3, tensors);
  move_layer(2, 4, tensors);
  files.tensors = tensors;
  files.config["layer_types"] = boost::json::array{"full_attention", "full_attention", "linear_attention",
                                                   "linear_attention", "linear_attention"};
  files.write(by_types.path());
  files.config.erase("layer_types");
  boost::json::object& lists = files.config["linear_attn_config"].as_object();
  lists["full_attn_layers"] = boost::json::array{1, 2};
  lists["kda_layers"] = boost::json::array{3, 4, 5};
  files.write(by_lists.path());
  const std::vector<int32_t> ids = prompt("hf/kimi_linear", "prompt_a.ids");
  EXPECT_TRUE(same_bits(logits_of(by_types.path(), ids), logits_of(by_lists.path(), ids)));
}

TEST(CheckpointVariants, WindowsThatSpanTheWholeContextAreNone) {
  ModelFiles files = ModelFiles::read(fixture("hf/qwen2"));
  files.config["use_sliding_window"] = true;
  files.config["max_window_layers"] = 0;
  files.config["sliding_window"] = files.config["max_position_embeddings"];
  files.config.erase("layer_types");
  TemporaryFolder folder;
  files.write(folder.path());
  const std::vector<int32_t> ids = prompt("hf/qwen2", "prompt_a.ids");
  EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), logits_of(fixture("hf/qwen2"), ids)));
}

struct BadCase {
  const char* name;
  const char* model;
  std::function<void(ModelFiles&)> spoil;
  std::vector<std::string> message_has;
};

const std::vector<BadCase>& bad_cases() {
  const auto set = [](const char* key, boost::json::value value) {
    return [key, value](ModelFiles& f) { f.text_config()[key] = value; };
  };
  const auto linear = [](const char* key, boost::json::value value) {
    return [key, value](ModelFiles& f) { f.text_config()["linear_attn_config"].as_object()[key] = value; };
  };
  static const char* kK3 = "kimi_k3/k3-tiny";
  static const char* kLinear = "hf/kimi_linear";
  static const char* kLlama = "hf/llama";
  static const char* kGptOss = "hf/gpt_oss";
  static const char* kQwen2 = "hf/qwen2";
  static const char* kQwen3 = "hf/qwen3";
  const auto windowed = [](ModelFiles& f) {
    f.config["use_sliding_window"] = true;
    f.config["sliding_window"] = 512;
    f.config["max_window_layers"] = 2;
    f.config.erase("layer_types");
  };
  static const std::string kExpert = "language_model.model.layers.1.block_sparse_moe.experts.3.w1.weight";
  static const std::vector<BadCase> cases = {
      {"UnknownFamily",
       kLlama,
       [](ModelFiles& f) { f.config["model_type"] = "mamba9"; },
       {"config.json", "model_type", "mamba9", "kimi_k3"}},
      {"NoFamily", kLlama, [](ModelFiles& f) { f.config.erase("model_type"); }, {"config.json", "model_type"}},
      {"MissingTensor",
       kLlama,
       [](ModelFiles& f) { f.tensors.erase("model.layers.2.mlp.up_proj.weight"); },
       {"model.layers.2.mlp.up_proj.weight"}},
      {"ExtraTensor",
       kLlama,
       [](ModelFiles& f) {
         f.tensors["model.layers.0.surprise"] = encode({1, 2}, "F32", {2});
       },
       {"model.layers.0.surprise", "[2]"}},
      {"ExtraLayer", kLlama, [](ModelFiles& f) { f.config["num_hidden_layers"] = 3; }, {"model.layers.3."}},
      {"WrongShape",
       kLlama,
       [](ModelFiles& f) { f.tensors.at("model.norm.weight") = encode(std::vector<float>(64), "F32", {64}); },
       {"model.norm.weight", "[128]", "[64]"}},
      {"TransposedMatrix",
       kLlama,
       [](ModelFiles& f) {
         auto& t = f.tensors.at("model.layers.0.mlp.up_proj.weight");
         std::swap(t.shape[0], t.shape[1]);
       },
       {"model.layers.0.mlp.up_proj.weight", "[256, 128]", "[128, 256]"}},
      {"IntegerTrunk",
       kK3,
       [](ModelFiles& f) {
         auto& t = f.tensors.at("language_model.model.layers.0.self_attn.q_proj.weight");
         t.dtype = "I8";
         t.data.resize(t.data.size() / 2);
       },
       {"self_attn.q_proj.weight", "I8", "F32, F16 or BF16"}},
      {"DoubleTrunk",
       kLlama,
       [](ModelFiles& f) {
         auto& t = f.tensors.at("model.norm.weight");
         t.dtype = "F64";
         t.data.resize(128 * 8);
       },
       {"model.norm.weight", "F64"}},
      {"MissingScale", kK3, [](ModelFiles& f) { f.tensors.erase(kExpert + "_scale"); }, {kExpert + "_scale"}},
      {"ScaleNotANumber",
       kK3,
       [](ModelFiles& f) { f.tensors.at(kExpert + "_scale").data[5] = std::byte{255}; },
       {kExpert + "_scale", "255", "element 5"}},
      {"ScaleShape",
       kK3,
       [](ModelFiles& f) {
         f.tensors.at(kExpert + "_scale").shape = {64, 1};
       },
       {kExpert + "_scale", "[32, 2]", "[64, 1]"}},
      {"MissingExpert",
       kK3,
       [](ModelFiles& f) {
         f.tensors.erase(kExpert + "_packed");
         f.tensors.erase(kExpert + "_scale");
       },
       {kExpert}},
      {"ShortALog",
       kK3,
       [](ModelFiles& f) {
         f.tensors.at("language_model.model.layers.0.self_attn.A_log") = encode({1, 2, 3}, "F32", {3});
       },
       {"A_log", "at least 4"}},
      {"ZeroHidden", kLlama, set("hidden_size", 0), {"hidden_size", "0"}},
      {"NegativeLayers", kLlama, set("num_hidden_layers", -1), {"num_hidden_layers", "-1"}},
      {"HugeHidden", kLlama, set("hidden_size", int64_t{1} << 60), {"hidden_size"}},
      {"FractionalHeads", kLlama, set("num_attention_heads", 4.5), {"num_attention_heads", "4.5"}},
      {"StringVocab", kLlama, set("vocab_size", "512"), {"vocab_size", "512"}},
      {"OddHeadDim", kLlama, set("head_dim", 31), {"head_dim", "31"}},
      {"UnevenGroups", kLlama, set("num_key_value_heads", 3), {"num_key_value_heads", "3"}},
      {"UnknownRope",
       kLlama,
       [](ModelFiles& f) { f.config["rope_parameters"].as_object()["rope_type"] = "moebius"; },
       {"rope_parameters.rope_type", "moebius"}},
      {"RopeWithoutTheta",
       kLlama,
       [](ModelFiles& f) { f.config["rope_parameters"].as_object().erase("rope_theta"); },
       {"rope_parameters.rope_theta", "nothing"}},
      {"BiasesOfAttention", kLinear, set("attention_bias", true), {"attention_bias", "true"}},
      {"ALogOfTooManyHeads",
       kLinear,
       [](ModelFiles& f) {
         RawTensor& a_log = f.tensors.at("model.layers.0.self_attn.A_log");
         std::vector<float> more = values(a_log);
         more.push_back(0.5f);
         a_log = encode(more, "F32", {static_cast<int64_t>(more.size())});
       },
       {"layers.0.self_attn.A_log", "zeros", "0.5"}},
      {"UnknownActivation", kLlama, set("hidden_act", "relu9"), {"hidden_act", "relu9"}},
      {"K3UnknownActivation", kK3, set("hidden_act", "relu9"), {"text_config.hidden_act", "relu9"}},
      {"ListShort",
       kLinear,
       [](ModelFiles& f) { f.config["layer_types"].as_array().pop_back(); },
       {"layer_types", "5 entries"}},
      {"ListUnknown",
       kLinear,
       [](ModelFiles& f) { f.config["layer_types"].as_array()[0] = "mystery"; },
       {"layer_types"}},
      {"LayerTwice", kK3, linear("kda_layers", boost::json::array{1, 2, 3, 4, 5}), {"kda_layers", "layer 4"}},
      {"LayerNowhere", kK3, linear("kda_layers", boost::json::array{1, 2, 3}), {"kda_layers", "layer 5"}},
      {"LayerZeroBased", kK3, linear("kda_layers", boost::json::array{0, 1, 2, 4}), {"kda_layers"}},
      {"NoLinearConfig",
       kK3,
       [](ModelFiles& f) { f.text_config().erase("linear_attn_config"); },
       {"linear_attn_config"}},
      {"TooManyExpertsChosen", kK3, set("num_experts_per_token", 17), {"num_experts_per_token", "17"}},
      {"GroupsDoNotDivide", kK3, set("num_expert_group", 3), {"num_expert_group", "3"}},
      {"RotatingMla", kLinear, set("mla_use_nope", false), {"mla_use_nope"}},
      {"UnknownQuantization",
       kK3,
       [](ModelFiles& f) { f.text_config()["quantization_config"].as_object()["quant_method"] = "awq"; },
       {"quantization_config.quant_method", "awq"}},
      {"StopTokenOutside", kLlama, [](ModelFiles& f) { f.config["eos_token_id"] = 512; }, {"eos_token_id", "512"}},
      {"SoftmaxRouter",
       kLinear,
       set("moe_router_activation_func", "softmax"),
       {"moe_router_activation_func", "softmax"}},
      {"ConvTapsTooMany", kK3, linear("short_conv_kernel_size", 99), {"short_conv_kernel_size", "99"}},
      {"WindowWithoutPositions",
       kQwen2,
       [windowed](ModelFiles& f) {
         windowed(f);
         f.config["sliding_window"] = 0;
       },
       {"sliding_window", "0"}},
      {"WindowsByLayer",
       kQwen3,
       [windowed](ModelFiles& f) {
         windowed(f);
         f.config["layer_types"] = boost::json::array{"full_attention", "chunked_attention"};
       },
       {"layer_types", "sliding_attention"}},
      {"TypesOfTooFewLayers",
       kGptOss,
       [](ModelFiles& f) { f.config["layer_types"] = boost::json::array{"full_attention"}; },
       {"layer_types", "4 entries"}},
      {"MissingSinks",
       kGptOss,
       [](ModelFiles& f) { f.tensors.erase("model.layers.1.self_attn.sinks"); },
       {"model.layers.1.self_attn.sinks"}},
      {"ExpertsInAnotherQuantization",
       kGptOss,
       [](ModelFiles& f) {
         f.config["quantization_config"] = {{"quant_method", "awq"}};
       },
       {"quantization_config.quant_method", "mxfp4", "awq"}},
      {"NoLimit", kGptOss, set("swiglu_limit", 0), {"swiglu_limit", "0"}},
      {"TransposedExperts",
       kGptOss,
       [](ModelFiles& f) {
         f.tensors["model.layers.0.mlp.experts.gate_up_proj"].shape = {8, 128, 64};
       },
       {"model.layers.0.mlp.experts.gate_up_proj", "[8, 64, 128]", "[8, 128, 64]"}},
      {"NanScaleInBlocks",
       "hf/gpt_oss/mxfp4",
       [](ModelFiles& f) { f.tensors["model.layers.2.mlp.experts.down_proj_scales"].data[5] = std::byte{255}; },
       {"model.layers.2.mlp.experts.down_proj_scales", "255"}},
      {"BlocksOfAnotherShape",
       "hf/gpt_oss/mxfp4",
       [](ModelFiles& f) {
         f.tensors["model.layers.2.mlp.experts.down_proj_blocks"].shape = {8, 64, 1, 32};
       },
       {"model.layers.2.mlp.experts.down_proj_blocks", "[8, 64, 2, 16]"}},
      {"MissingBias",
       kQwen2,
       [](ModelFiles& f) { f.tensors.erase("model.layers.1.self_attn.v_proj.bias"); },
       {"model.layers.1.self_attn.v_proj.bias"}},
      {"BiasOnTheOutput",
       kQwen2,
       [](ModelFiles& f) {
         f.tensors["model.layers.1.self_attn.o_proj.bias"] = encode(std::vector<float>(96), "F32", {96});
       },
       {"model.layers.1.self_attn.o_proj.bias", "[96]"}},
      {"MissingHeadNorm",
       kQwen3,
       [](ModelFiles& f) { f.tensors.erase("model.layers.0.self_attn.k_norm.weight"); },
       {"model.layers.0.self_attn.k_norm.weight"}},
      {"HeadNormShape",
       kQwen3,
       [](ModelFiles& f) {
         f.tensors.at("model.layers.0.self_attn.q_norm.weight") = encode(std::vector<float>(64), "F32", {64});
       },
       {"q_norm", "[32]", "[64]"}},
      {"DynamicRope",
       kQwen3,
       [](ModelFiles& f) { f.config["rope_parameters"].as_object()["rope_type"] = "dynamic"; },
       {"rope_parameters.rope_type", "dynamic", "yarn"}},
      {"GateBoundTooLow", kK3, linear("gate_lower_bound", -50), {"gate_lower_bound", "-50"}},
  };
  return cases;
}

class BadCheckpoint : public testing::TestWithParam<BadCase> {};

TEST_P(BadCheckpoint, IsRefusedByName) {
  ModelFiles files = ModelFiles::read(fixture(GetParam().model));
  GetParam().spoil(files);
  TemporaryFolder folder;
  files.write(folder.path());
  try {
    Model::load(folder.path());
    FAIL() << "was accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string& part : GetParam().message_has) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_NE(message.find(folder.path().string()), std::string::npos) << "names no file: " << message;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, BadCheckpoint, testing::ValuesIn(bad_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace weir::test
